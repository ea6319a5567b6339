comment on column jobs.has_inputs is 'True if the job has needs. A claim then reads its inputs.';
drop table job_options;
