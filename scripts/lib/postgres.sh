# shellcheck shell=bash
# A private PostgreSQL server in its own directory, for scripts/test and scripts/postgres.
#
# The directory is the data directory, with settings, log and unix socket. After the server has stopped and the directory is
# removed, nothing remains. TCP uses a free loopback port, so a server that the machine already runs is not affected.
#
# Source this file; the caller keeps its own shell options.

# Prints the folder with the server programs. Debian keeps them off PATH, one folder for each major version.
postgres_bin() {
    local initdb
    initdb=$(printf '%s\n' /usr/lib/postgresql/*/bin/initdb | sort --version-sort | tail -n 1)
    if [[ ! -x $initdb ]]; then
        initdb=$(command -v initdb) || {
            echo "PostgreSQL: no initdb under /usr/lib/postgresql or on PATH" >&2
            return 1
        }
    fi
    dirname "$initdb"
}

# Runs a command as the user that owns the server. PostgreSQL refuses to run as root. The working directory changes,
# because that user may not be able to enter the current one.
postgres_as_owner() {
    if [[ $(id -u) -eq 0 ]]; then
        (cd / && exec runuser -u postgres -- "$@")
    else
        (cd / && exec "$@")
    fi
}

# True if the server's user can write to an existing directory.
postgres_can_reach() {
    postgres_as_owner test -x "$1" 2>/dev/null
}

postgres_free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# Prints the address of the server that runs in a directory; fails if none runs.
postgres_url() {
    local dir=$1 bin port
    bin=$(postgres_bin) || return 1
    postgres_as_owner "$bin/pg_ctl" status -D "$dir" >/dev/null 2>&1 || return 1
    # The fourth line of postmaster.pid is the port.
    port=$(sed -n 4p "$dir/postmaster.pid")
    echo "postgres://postgres@127.0.0.1:$port/postgres"
}

postgres_create() {
    local dir=$1 bin=$2 output socket=$1
    mkdir -p "$dir" || return 1
    if [[ $(id -u) -eq 0 ]]; then
        # Change the owner of an empty directory only: a mistyped path must not lose its owner.
        if [[ -n $(ls -A "$dir") ]]; then
            echo "PostgreSQL: $dir is neither empty nor a data directory" >&2
            return 1
        fi
        chown postgres: "$dir" || return 1
    fi
    if ! postgres_can_reach "$dir"; then
        echo "PostgreSQL: the user postgres cannot reach $dir; choose a directory outside your home" >&2
        return 1
    fi
    output=$(postgres_as_owner "$bin/initdb" --pgdata="$dir" --username=postgres --auth=trust --encoding=UTF8 \
        --locale=C.UTF-8 --no-sync 2>&1) || {
        echo "PostgreSQL: initdb failed in $dir: $output" >&2
        return 1
    }
    # The kernel permits 107 bytes for the path of a socket; its name takes 15. A longer path leaves TCP only.
    if ((${#dir} > 107 - 15)); then
        socket=
    fi
    # Durability is as in production, because tests check what survives a crash.
    postgres_as_owner tee -a "$dir/postgresql.conf" >/dev/null <<SETTINGS
listen_addresses = '127.0.0.1'
unix_socket_directories = '${socket//\'/\'\'}'
max_connections = 300
fsync = on
synchronous_commit = on
SETTINGS
}

# Starts a server in a directory and prints its address. Creates the database cluster if there is none. Does nothing if a
# server already runs there.
postgres_start() {
    local dir bin attempt port
    dir=$(realpath -m "$1")
    bin=$(postgres_bin) || return 1
    if postgres_url "$dir"; then
        return 0
    fi
    if [[ ! -s $dir/PG_VERSION ]]; then
        postgres_create "$dir" "$bin" || return 1
    fi
    # Another program can take the port between the choice and the start, so a failed start is repeated. A slow start is
    # awaited, because it would block the next one.
    for attempt in 1 2 3 4 5; do
        port=$(postgres_free_port) || return 1
        if postgres_as_owner "$bin/pg_ctl" start -D "$dir" -w -t 300 -l "$dir/server.log" -o "-p $port" >/dev/null; then
            postgres_url "$dir"
            return
        fi
    done
    echo "PostgreSQL: no start in $attempt attempts; the end of $dir/server.log:" >&2
    tail -n 20 "$dir/server.log" >&2
    return 1
}

# Stops the server of a directory. It is not an error if there is no server or no directory.
postgres_stop() {
    local dir bin
    dir=$(realpath -m "$1")
    [[ -e $dir/postmaster.pid ]] || return 0
    bin=$(postgres_bin) || return 1
    postgres_as_owner "$bin/pg_ctl" status -D "$dir" >/dev/null 2>&1 || return 0
    postgres_as_owner "$bin/pg_ctl" stop -D "$dir" -m fast -w -t 120 >/dev/null ||
        postgres_as_owner "$bin/pg_ctl" stop -D "$dir" -m immediate -w -t 120 >/dev/null ||
        # It ended in the meantime.
        ! postgres_as_owner "$bin/pg_ctl" status -D "$dir" >/dev/null 2>&1
}
