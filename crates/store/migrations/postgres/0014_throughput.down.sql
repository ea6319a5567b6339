drop table throughput;
