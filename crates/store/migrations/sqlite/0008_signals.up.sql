-- What was said of a job holds for the claim (or the wait) it was said in. `kind` is what cannot be derived from the job.
alter table signals add column kind text;
alter table signals add column epoch integer not null default 0;
