<?php
declare(strict_types=1);
require __DIR__ . '/lib.php';

// Lines are "product:quantity", parted by commas; a product is in one at most.
function wanted(string $text): array
{
    $lines = [];
    foreach (explode(',', $text) as $line) {
        if (!preg_match('/^([1-9][0-9]{0,8}):([1-9][0-9]?)$/', $line, $m) || isset($lines[(int) $m[1]])) {
            refuse(400, 'lines are product:quantity, each product once');
        }
        $lines[(int) $m[1]] = (int) $m[2];
    }
    return $lines;
}

// Stock is taken in the order of the products, so that two orders never wait for
// each other.
function take(mysqli $db, array $lines): ?int
{
    ksort($lines);
    foreach ($lines as $product => $quantity) {
        $db->execute_query('UPDATE inventory SET stock = stock - ?, sold = sold + ? WHERE product = ? AND stock >= ?', [$quantity, $quantity, $product, $quantity]);
        if ($db->affected_rows !== 1) {
            return $product;
        }
    }
    return null;
}

function place(mysqli $db, int $customer, string $run, array $lines): array
{
    $marks = implode(',', array_fill(0, count($lines), '?'));
    $cents = array_column(rows($db, "SELECT id, cents FROM products WHERE id IN ($marks)", array_keys($lines)), 'cents', 'id');
    $net = 0;
    foreach ($lines as $product => $quantity) {
        $net += $quantity * (int) $cents[$product];
    }
    $tax = intdiv($net * 80 + 500, 1000);
    $db->execute_query('INSERT INTO orders (customer, placed, net, tax, run) VALUES (?, UTC_TIMESTAMP(), ?, ?, ?)', [$customer, $net, $tax, $run]);
    $order = $db->insert_id;
    $n = 0;
    foreach ($lines as $product => $quantity) {
        $n++;
        $db->execute_query('INSERT INTO order_lines (order_id, line, product, quantity, cents) VALUES (?, ?, ?, ?, ?)', [$order, $n, $product, $quantity, $cents[$product]]);
        $db->execute_query('INSERT INTO history (customer, order_id, line, product) VALUES (?, ?, ?, ?)', [$customer, $order, $n, $product]);
    }
    return [$order, $net + $tax];
}

$customer = number('customer');
$run = given('run');
$lines = wanted(given('lines'));
$db = database();
$db->begin_transaction();
$missing = take($db, $lines);
if ($missing !== null) {
    $db->rollback();
    head('Sold out');
    echo '<p>There is not enough left of <b id="missing">', $missing, "</b>. Nothing was ordered.</p>\n";
    foot();
    exit;
}
[$order, $total] = place($db, $customer, $run, $lines);
$db->commit();
head('Thank you');
echo '<p>Order <b id="order">', $order, '</b>, <b id="lines">', count($lines), '</b> titles, total <b id="total">', money($total), "</b></p>\n";
foot();
