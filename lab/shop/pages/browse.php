<?php
declare(strict_types=1);
require __DIR__ . '/lib.php';

$columns = 'SELECT p.id, p.title, p.actor, p.cents, c.name FROM products p JOIN categories c ON c.id = p.category WHERE ';
$by = given('by');
$for = given('for');
$like = addcslashes($for, '%_\\') . '%';
$db = database();
$found = match ($by) {
    'title' => rows($db, $columns . 'p.title LIKE ? ORDER BY p.title, p.id LIMIT 10', [$like]),
    'actor' => rows($db, $columns . 'p.actor LIKE ? ORDER BY p.actor, p.id LIMIT 10', [$like]),
    'category' => rows($db, $columns . 'p.category = ? ORDER BY p.id LIMIT 10', [number('for', 255)]),
    default => refuse(400, 'by is title, actor or category'),
};
head("By $by: $for");
echo '<p>Found <b id="found">', count($found), "</b></p>\n<table class=\"products\">\n";
foreach ($found as $row) {
    echo '<tr data-id="', h($row['id']), '"><td>', h($row['title']), '</td><td>', h($row['actor']), '</td><td>', h($row['name']), '</td><td>', money((int) $row['cents']), "</td></tr>\n";
}
echo "</table>\n";
foot();
