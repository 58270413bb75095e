<?php
// What every page of the shop needs. A page is whole or it is an error: nothing
// is sent before the end, and whatever goes wrong gives a status that says so.
declare(strict_types=1);

mysqli_report(MYSQLI_REPORT_ERROR | MYSQLI_REPORT_STRICT);
ini_set('display_errors', '0');
ob_start();
set_error_handler(function (int $level, string $text): bool {
    throw new ErrorException($text, 0, $level);
});
set_exception_handler(function (Throwable $e): void {
    refuse(500, $e->getMessage());
});

function refuse(int $status, string $why): never
{
    ob_end_clean();
    http_response_code($status);
    header('Content-Type: text/plain; charset=utf-8');
    exit("cannot show this page: $why\n");
}

// Connections are kept from page to page; a kept one starts anew, without what an
// earlier page left open.
function database(): mysqli
{
    $c = require __DIR__ . '/config.php';
    $db = new mysqli('p:' . $c['host'], $c['user'], $c['password'], $c['database'], $c['port'], $c['socket'] ?: null);
    $db->set_charset('utf8mb4');
    return $db;
}

function rows(mysqli $db, string $query, array $values = []): array
{
    return $db->execute_query($query, $values)->fetch_all(MYSQLI_ASSOC);
}

function given(string $name): string
{
    $value = $_POST[$name] ?? $_GET[$name] ?? '';
    if (!is_string($value) || $value === '' || strlen($value) > 200) {
        refuse(400, "$name is missing or too long");
    }
    return $value;
}

function number(string $name, int $most = PHP_INT_MAX): int
{
    $value = given($name);
    if (!ctype_digit($value) || strlen($value) > 18 || (int) $value < 1 || (int) $value > $most) {
        refuse(400, "$name is not a number from 1 to $most");
    }
    return (int) $value;
}

function h(string|int $text): string
{
    return htmlspecialchars((string) $text, ENT_QUOTES);
}

function money(int $cents): string
{
    return sprintf('%d.%02d', intdiv($cents, 100), $cents % 100);
}

function head(string $title): void
{
    echo "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>", h($title), "</title></head>\n<body><h1>", h($title), "</h1>\n";
}

function foot(): void
{
    echo "<p><a href=\"login.php\">The shop</a></p></body></html>\n";
    ob_end_flush();
}

// The last things that a customer bought, and what those who bought them like.
function bought(mysqli $db, int $customer): void
{
    $all = rows($db, 'SELECT p.title, c.title AS companion FROM history h JOIN products p ON p.id = h.product
        JOIN products c ON c.id = p.companion WHERE h.customer = ? ORDER BY h.order_id DESC, h.line LIMIT 10', [$customer]);
    echo "<table class=\"history\">\n";
    foreach ($all as $row) {
        echo '<tr><td>', h($row['title']), '</td><td>', h($row['companion']), "</td></tr>\n";
    }
    echo "</table>\n";
}
