# shellcheck shell=bash
# A private Docker engine in its own directory, for scripts/test and scripts/docker.
#
# Its data, state, socket and log are in that directory, and its containers use a separate bridge. It adds no rule to the
# packet filter: its proxy publishes ports on loopback. It does not affect an engine that the machine already runs. After
# it has stopped and the directory is removed, nothing remains.
#
# Source this file; the caller keeps its own shell options. The engine needs root; the user that starts it may use it.

docker_as_root() {
    if [[ $(id -u) -eq 0 ]]; then "$@"; else sudo -n "$@"; fi
}

# Prints the name of the bridge for a directory. The kernel permits 15 bytes.
docker_bridge() {
    echo "wl$(printf '%s' "$1" | sha256sum | cut -c 1-10)"
}

docker_is_up() {
    local dir=$1
    docker_as_root curl --silent --fail --max-time 2 --unix-socket "$dir/docker.sock" http://localhost/_ping >/dev/null 2>&1
}

# Prints the address of the engine that runs in a directory; fails if none runs.
docker_url() {
    docker_is_up "$1" && echo "unix://$1/docker.sock"
}

# Gives the bridge an address in an unused network of this machine. A lock of the machine serializes engines that start at
# the same time: with two bridges in one network, the containers of one would be unreachable.
docker_make_bridge() {
    (
        flock 9
        docker_add_bridge "$1"
    ) 9</tmp
}

docker_add_bridge() {
    local bridge=$1 part taken
    if ! ip link show "$bridge" >/dev/null 2>&1; then
        docker_as_root ip link add "$bridge" type bridge || return 1
    fi
    if [[ -z $(ip -4 addr show dev "$bridge") ]]; then
        # The address of a bridge that is not up yet has no route.
        taken=$(ip -4 -o addr && ip -4 route) || return 1
        for part in {30..250}; do
            [[ $taken == *[[:space:]]10.213.$part.* ]] || break
        done
        docker_as_root ip addr add "10.213.$part.1/24" dev "$bridge" || return 1
    fi
    docker_as_root ip link set "$bridge" up
}

# Starts the engine of a directory on a bridge, in a new session: it outlives its caller and is ended by its process id.
# Called by docker_start, whose variables `child` and `starts` it sets.
docker_run() {
    docker_as_root setsid dockerd --config-file "$1/daemon.json" --host "unix://$1/docker.sock" --data-root "$1/data" \
        --exec-root "$1/exec" --pidfile "$1/docker.pid" --bridge "$2" --iptables=false --ip6tables=false \
        --ip-masq=false --group "$(id -gn)" --shutdown-timeout 5 </dev/null >>"$1/docker.log" 2>&1 &
    child=$!
    starts=$((starts + 1))
}

docker_start() {
    local dir bridge attempt child starts=0
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
    # Do not read the settings of the machine's engine.
    echo '{}' >"$dir/daemon.json"
    docker_run "$dir" "$bridge"
    for attempt in {1..1200}; do
        if docker_url "$dir"; then
            return 0
        fi
        # The engine exits if its containerd starts slowly, for example on a busy machine.
        if [[ ! -d /proc/$child ]]; then
            ((starts < 3)) || break
            docker_run "$dir" "$bridge"
        fi
        sleep 0.1
    done
    echo "Docker: no answer after $attempt looks; the end of $dir/docker.log:" >&2
    tail -n 20 "$dir/docker.log" >&2
    return 1
}

# Stops the engine of a directory. Its containers stop with it and are present when it is started again. It is not an error
# if there is no engine or no directory.
docker_end() {
    local dir pid
    dir=$(realpath -m "$1")
    [[ -s $dir/docker.pid ]] || return 0
    pid=$(<"$dir/docker.pid")
    docker_as_root kill -TERM "$pid" 2>/dev/null || true
    # SIGKILL would leave its containerd running.
    for _ in {1..1200}; do
        docker_as_root kill -0 "$pid" 2>/dev/null || return 0
        sleep 0.1
    done
    docker_as_root kill -KILL "$pid" 2>/dev/null || true
}

# Stops the engine and removes its containers, its data and its bridge.
docker_stop() {
    local dir bridge
    dir=$(realpath -m "$1")
    [[ -d $dir ]] || return 0
    docker_end "$dir"
    bridge=$(docker_bridge "$dir")
    if ip link show "$bridge" >/dev/null 2>&1; then
        docker_as_root ip link delete "$bridge"
    fi
    # The files of the engine belong to root.
    docker_as_root rm -rf --one-file-system "$dir/data" "$dir/exec"
}
