CREATE TABLE warehouses (
  id INT NOT NULL PRIMARY KEY,
  name VARCHAR(10) NOT NULL,
  tax INT NOT NULL,
  year BIGINT NOT NULL
) ENGINE=InnoDB;
CREATE TABLE districts (
  warehouse INT NOT NULL,
  id INT NOT NULL,
  name VARCHAR(10) NOT NULL,
  tax INT NOT NULL,
  year BIGINT NOT NULL,
  next_order INT NOT NULL,
  PRIMARY KEY (warehouse, id)
) ENGINE=InnoDB;
CREATE TABLE customers (
  warehouse INT NOT NULL,
  district INT NOT NULL,
  id INT NOT NULL,
  last_name VARCHAR(16) NOT NULL,
  first_name VARCHAR(16) NOT NULL,
  discount INT NOT NULL,
  balance BIGINT NOT NULL,
  paid BIGINT NOT NULL,
  payments INT NOT NULL,
  deliveries INT NOT NULL,
  data VARCHAR(500) NOT NULL,
  PRIMARY KEY (warehouse, district, id),
  KEY by_name (warehouse, district, last_name, first_name)
) ENGINE=InnoDB;
CREATE TABLE payments (
  id BIGINT NOT NULL PRIMARY KEY AUTO_INCREMENT,
  warehouse INT NOT NULL,
  district INT NOT NULL,
  customer_warehouse INT NOT NULL,
  customer_district INT NOT NULL,
  customer INT NOT NULL,
  paid_at DATETIME NOT NULL,
  amount BIGINT NOT NULL
) ENGINE=InnoDB;
CREATE TABLE orders (
  warehouse INT NOT NULL,
  district INT NOT NULL,
  id INT NOT NULL,
  customer INT NOT NULL,
  entered DATETIME NOT NULL,
  carrier INT NULL,
  line_count INT NOT NULL,
  PRIMARY KEY (warehouse, district, id),
  KEY by_customer (warehouse, district, customer, id)
) ENGINE=InnoDB;
CREATE TABLE waiting (
  warehouse INT NOT NULL,
  district INT NOT NULL,
  order_id INT NOT NULL,
  PRIMARY KEY (warehouse, district, order_id)
) ENGINE=InnoDB;
CREATE TABLE order_lines (
  warehouse INT NOT NULL,
  district INT NOT NULL,
  order_id INT NOT NULL,
  line INT NOT NULL,
  item INT NOT NULL,
  supplier INT NOT NULL,
  delivered DATETIME NULL,
  quantity INT NOT NULL,
  amount BIGINT NOT NULL,
  info CHAR(24) NOT NULL,
  PRIMARY KEY (warehouse, district, order_id, line)
) ENGINE=InnoDB;
CREATE TABLE items (
  id INT NOT NULL PRIMARY KEY,
  name VARCHAR(24) NOT NULL,
  price INT NOT NULL,
  data VARCHAR(50) NOT NULL
) ENGINE=InnoDB;
CREATE TABLE stocks (
  warehouse INT NOT NULL,
  item INT NOT NULL,
  quantity INT NOT NULL,
  sold BIGINT NOT NULL,
  orders INT NOT NULL,
  info CHAR(24) NOT NULL,
  data VARCHAR(50) NOT NULL,
  PRIMARY KEY (warehouse, item)
) ENGINE=InnoDB;
