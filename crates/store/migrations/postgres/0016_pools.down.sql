drop table pools;
