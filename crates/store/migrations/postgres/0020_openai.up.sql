-- Files of the OpenAI-compatible face: small ones in their row, larger ones in the folder or bucket of artifacts.
create table openai_files (
    id text collate "C" primary key,
    tenant bigint not null,
    filename text not null,
    purpose text collate "C" not null,
    bytes bigint not null,
    sha256 bytea not null,
    content bytea,
    location text collate "C",
    principal text collate "C" not null,
    created_at timestamptz not null,
    expires_at timestamptz
);
create index openai_files_tenant on openai_files (tenant, id);
create index openai_files_expiry on openai_files (expires_at) where expires_at is not null;

-- A batch is jobs of one run, whose name is the batch's id. The first `made` lines of its input have their jobs.
create table openai_batches (
    id text collate "C" primary key,
    tenant bigint not null,
    endpoint text not null,
    input_file text collate "C" not null,
    completion_window text not null,
    status text collate "C" not null,
    metadata json,
    errors json not null,
    output_file text collate "C",
    error_file text collate "C",
    files_kept_s bigint,
    total bigint not null default 0,
    made bigint not null default 0,
    completed bigint not null default 0,
    failed bigint not null default 0,
    principal text collate "C" not null,
    created_at timestamptz not null,
    expires_at timestamptz not null,
    in_progress_at timestamptz,
    finalizing_at timestamptz,
    cancelling_at timestamptz,
    ended_at timestamptz
);
create index openai_batches_tenant on openai_batches (tenant, id);
create index openai_batches_open on openai_batches (id) where ended_at is null;
create index openai_batches_ended on openai_batches (ended_at) where ended_at is not null;
