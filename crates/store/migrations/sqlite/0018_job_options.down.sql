drop table job_options;
