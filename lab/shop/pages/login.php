<?php
declare(strict_types=1);
require __DIR__ . '/lib.php';

$db = database();
$found = rows($db, 'SELECT id, first_name, last_name FROM customers WHERE username = ? AND password = ?', [given('username'), hash('sha256', given('password'))]);
if (count($found) !== 1) {
    refuse(403, 'nobody has this name and password');
}
$who = $found[0];
head("Welcome, {$who['first_name']} {$who['last_name']}");
echo '<p>Customer <b id="customer">', h($who['id']), "</b>. You bought, and may like:</p>\n";
bought($db, (int) $who['id']);
foot();
