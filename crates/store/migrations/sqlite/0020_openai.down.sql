drop table openai_batches;
drop table openai_files;
