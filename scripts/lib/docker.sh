# shellcheck shell=bash
# A private Docker engine in a directory of its own, for scripts/test and scripts/docker.
#
# Its data, its state, its socket and its log live in that directory, and its containers are on a bridge of its own. It writes no
# rule into the machine's packet filter: ports are published by its own proxy, on loopback. So an engine that the machine
# already runs is never touched, and stopping this one and removing the directory leaves nothing behind.
#
# Source this file; the caller keeps its own shell options. The engine needs root.

docker_as_root() {
    if [[ $(id -u) -eq 0 ]]; then "$@"; else sudo -n "$@"; fi
}

# Prints the name of the bridge of a directory: the kernel allows 15 bytes.
docker_bridge() {
    echo "wl$(printf '%s' "$1" | sha256sum | cut -c 1-10)"
}

docker_is_up() {
    local dir=$1
    docker_as_root curl --silent --fail --max-time 2 --unix-socket "$dir/docker.sock" http://localhost/_ping >/dev/null 2>&1
}

# Prints the address of the engine that runs in a directory; fails when none does.
docker_url() {
    docker_is_up "$1" && echo "unix://$1/docker.sock"
}

# Gives the bridge an address in a network of this machine that nothing uses.
docker_make_bridge() {
    local bridge=$1 part
    if ! ip link show "$bridge" >/dev/null 2>&1; then
        docker_as_root ip link add "$bridge" type bridge || return 1
    fi
    for part in {30..250}; do
        ip -4 addr show dev "$bridge" | grep -q inet && break
        ip -4 route | grep -q "^10\.213\.$part\." || docker_as_root ip addr add "10.213.$part.1/24" dev "$bridge"
    done
    docker_as_root ip link set "$bridge" up
}

docker_start() {
    local dir bridge attempt
    dir=$(realpath -m "$1")
    if docker_url "$dir"; then
        return 0
    fi
    if ((${#dir} > 80)); then
        echo "Docker: $dir is too deep for a socket; choose a shorter path" >&2
        return 1
    fi
    command -v dockerd >/dev/null || {
        echo "Docker: there is no dockerd on PATH" >&2
        return 1
    }
    mkdir -p "$dir" || return 1
    bridge=$(docker_bridge "$dir")
    docker_make_bridge "$bridge" || {
        echo "Docker: the bridge $bridge could not be made" >&2
        return 1
    }
    # The settings of the machine's own engine must not be read.
    echo '{}' >"$dir/daemon.json"
    # In a session of its own it outlives whoever asked for it; it is ended by its process id.
    docker_as_root setsid dockerd --config-file "$dir/daemon.json" --host "unix://$dir/docker.sock" --data-root "$dir/data" \
        --exec-root "$dir/exec" --pidfile "$dir/docker.pid" --bridge "$bridge" --iptables=false --ip6tables=false \
        --ip-masq=false --shutdown-timeout 5 </dev/null >"$dir/docker.log" 2>&1 &
    for attempt in {1..300}; do
        if docker_url "$dir"; then
            return 0
        fi
        sleep 0.1
    done
    echo "Docker: no answer after $attempt looks; the end of $dir/docker.log:" >&2
    tail -n 20 "$dir/docker.log" >&2
    return 1
}

# Ends the engine of a directory with its containers, and its bridge. No engine, or no directory, is success.
docker_stop() {
    local dir pid bridge
    dir=$(realpath -m "$1")
    [[ -d $dir ]] || return 0
    if [[ -s $dir/docker.pid ]]; then
        pid=$(<"$dir/docker.pid")
        docker_as_root kill -TERM "$pid" 2>/dev/null || true
        for _ in {1..300}; do
            docker_as_root kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
        docker_as_root kill -KILL "$pid" 2>/dev/null || true
    fi
    bridge=$(docker_bridge "$dir")
    if ip link show "$bridge" >/dev/null 2>&1; then
        docker_as_root ip link delete "$bridge"
    fi
    # What the engine wrote belongs to root, and nothing in it is worth keeping.
    docker_as_root rm -rf --one-file-system "$dir/data" "$dir/exec"
}
