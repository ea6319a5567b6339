# shellcheck shell=bash
# A private PostgreSQL server in a directory of its own, for scripts/test and scripts/postgres.
#
# The directory is the data directory: settings, log and unix socket live in it, so that stopping the server and
# removing the directory leaves nothing behind. TCP is on a free loopback port, so that a server which the machine
# already runs is never touched.
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

# Runs a command as the user who owns the server. PostgreSQL refuses to run as root.
# The working directory changes because that user may not be able to enter ours.
postgres_as_owner() {
    if [[ $(id -u) -eq 0 ]]; then
        (cd / && exec runuser -u postgres -- "$@")
    else
        (cd / && exec "$@")
    fi
}

# Tells whether the server's user can work in an existing directory.
postgres_can_reach() {
    postgres_as_owner test -x "$1" 2>/dev/null
}

postgres_free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# Prints the address of the server that runs in a directory; fails when none does.
postgres_url() {
    local dir=$1 bin port
    bin=$(postgres_bin) || return 1
    postgres_as_owner "$bin/pg_ctl" status -D "$dir" >/dev/null 2>&1 || return 1
    # The fourth line of the postmaster's own file is its port.
    port=$(sed -n 4p "$dir/postmaster.pid")
    echo "postgres://postgres@127.0.0.1:$port/postgres"
}

postgres_create() {
    local dir=$1 bin=$2 output socket=$1
    mkdir -p "$dir" || return 1
    if [[ $(id -u) -eq 0 ]]; then
        # Only an empty directory changes hands: a mistyped path must not lose its owner.
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
    # The kernel allows 107 bytes for a socket's path, of which its name takes 15. Without room there is TCP alone.
    if ((${#dir} > 107 - 15)); then
        socket=
    fi
    # Durability stays as in production: the tests are about what survives a crash.
    postgres_as_owner tee -a "$dir/postgresql.conf" >/dev/null <<SETTINGS
listen_addresses = '127.0.0.1'
unix_socket_directories = '${socket//\'/\'\'}'
max_connections = 300
fsync = on
synchronous_commit = on
SETTINGS
}

# Starts a server in a directory, making the database cluster first if there is none, and prints its address.
# A server that already runs there is left as it is.
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
    # Another program can take the port between the choice and the start, so a failed start is tried again. One that is only
    # slow is waited for: it would stand in the way of the next.
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

# Stops the server of a directory. No server, or no directory, is success.
postgres_stop() {
    local dir bin
    dir=$(realpath -m "$1")
    [[ -e $dir/postmaster.pid ]] || return 0
    bin=$(postgres_bin) || return 1
    postgres_as_owner "$bin/pg_ctl" status -D "$dir" >/dev/null 2>&1 || return 0
    postgres_as_owner "$bin/pg_ctl" stop -D "$dir" -m fast -w -t 120 >/dev/null ||
        postgres_as_owner "$bin/pg_ctl" stop -D "$dir" -m immediate -w -t 120 >/dev/null ||
        # It was about to end by itself.
        ! postgres_as_owner "$bin/pg_ctl" status -D "$dir" >/dev/null 2>&1
}
