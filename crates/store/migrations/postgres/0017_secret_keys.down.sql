drop table secret_keys;
