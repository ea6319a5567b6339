-- Files of the OpenAI-compatible face: small ones in their row, larger ones in the folder or bucket of artifacts.
create table openai_files (
    id text primary key not null,
    tenant integer not null,
    filename text not null,
    purpose text not null,
    bytes integer not null,
    sha256 blob not null,
    content blob,
    location text,
    principal text not null,
    created_at integer not null,
    expires_at integer
) without rowid;
create index openai_files_tenant on openai_files (tenant, id);
create index openai_files_expiry on openai_files (expires_at) where expires_at is not null;

-- A batch is jobs of one run, whose name is the batch's id. The first `made` lines of its input have their jobs.
create table openai_batches (
    id text primary key not null,
    tenant integer not null,
    endpoint text not null,
    input_file text not null,
    completion_window text not null,
    status text not null,
    metadata text,
    errors text not null,
    output_file text,
    error_file text,
    files_kept_s integer,
    total integer not null default 0,
    made integer not null default 0,
    completed integer not null default 0,
    failed integer not null default 0,
    principal text not null,
    created_at integer not null,
    expires_at integer not null,
    in_progress_at integer,
    finalizing_at integer,
    cancelling_at integer,
    ended_at integer
) without rowid;
create index openai_batches_tenant on openai_batches (tenant, id);
create index openai_batches_open on openai_batches (id) where ended_at is null;
create index openai_batches_ended on openai_batches (ended_at) where ended_at is not null;
