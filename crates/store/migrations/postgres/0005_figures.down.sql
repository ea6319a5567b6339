drop table figures;
