<?php
declare(strict_types=1);
require __DIR__ . '/lib.php';

$db = database();
$values = [given('username'), hash('sha256', given('password')), given('first_name'), given('last_name'), given('street'), given('city'), given('email'), given('card'), number('age', 150), number('income')];
try {
    $db->execute_query('INSERT INTO customers (username, password, first_name, last_name, street, city, email, card, age, income) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)', $values);
} catch (mysqli_sql_exception $e) {
    if ($e->getCode() === 1062) {
        refuse(409, 'the name is taken: choose another');
    }
    throw $e;
}
head("Welcome, $values[2] $values[3]");
echo '<p>Customer <b id="customer">', h($db->insert_id), "</b>. You are new here.</p>\n";
foot();
