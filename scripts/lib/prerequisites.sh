# shellcheck shell=bash
# The prerequisites of the tests on a bare Debian 12 machine, and their installation. Sourced by scripts/test.
#
# System programs come from Debian packages. Cargo tools are built into target/tools. The caller sets `root` and `target`
# (absolute paths).

# Pinned versions: every machine builds the same tool. A tool that is on PATH is used whatever its version.
readonly NEXTEST_VERSION=0.9.143
readonly DENY_VERSION=0.20.2
readonly MDBOOK_VERSION=0.5.4
readonly PYPI_STANDARDWEBHOOKS=1.1.0
readonly PYPI_SCHEMATHESIS=4.32.5
readonly PYPI_OPENAI=2.8.1
readonly PYPI_NUMPY=2.4.6
readonly PYPI_MCP=2.3.0
readonly NPM_STANDARDWEBHOOKS=1.1.1
readonly NPM_AXE=4.14.0
readonly PYPI_CLOUDEVENTS=2.2.0
readonly NPM_PYRIGHT=1.1.414

# Each line has a name, the package that provides it, and a command that succeeds if it is present. Debian 12 has a current
# Rust only in the `-web` packages, with which its browsers are built.
prerequisites_of_the_system() {
    cat <<'LIST'
gcc             build-essential   command -v gcc
pkg-config      pkg-config        command -v pkg-config
curl            curl              command -v curl
jq              jq                command -v jq
postgresql      postgresql        postgres_bin
pgbouncer       pgbouncer         command -v pgbouncer
promtool        prometheus        command -v promtool
sqlite3         sqlite3           command -v sqlite3
strace          strace            command -v strace
libfaketime     libfaketime       ls /usr/lib/*/faketime/libfaketime.so.1
swaks           swaks             command -v swaks
dockerd         docker.io         command -v dockerd
ip              iproute2          command -v ip
busybox         busybox-static    busybox --list
python3         python3           command -v python3
codespell       codespell         command -v codespell
python3-venv    python3-venv      python3 -c 'import ensurepip, venv'
node            nodejs            command -v node
npm             npm               command -v npm
chromium        chromium          command -v chromium
chromedriver    chromium-driver   command -v chromedriver
cargo           cargo-web         cargo --version
rustdoc         rustc-web         rustdoc --version
rustfmt         rustfmt-web       cargo fmt --version
clippy          rust-web-clippy   cargo clippy --version
LIST
}

# Prints the lines of the list whose command fails.
prerequisites_missing() {
    local name package probe
    while read -r name package probe; do
        eval "$probe" >/dev/null 2>&1 || echo "$name $package"
    done < <(prerequisites_of_the_system)
}

as_root() {
    if [[ $(id -u) -eq 0 ]]; then
        "$@"
    else
        sudo -n "$@"
    fi
}

# If the machine has an init system, Debian starts a service when it installs one. The tests do not use these services, so
# a server that did not run before is ended by its process id.
service_pid_files() {
    find /run/postgresql /run/prometheus -maxdepth 1 -name '*.pid' 2>/dev/null | sort
}

stop_new_services() {
    local before=$1 file pid
    while read -r file; do
        [[ -n $file ]] || continue
        pid=$(as_root head -n 1 "$file") || continue
        echo "ending the service that the installation started: $file"
        # These servers shut down in order at SIGINT.
        as_root kill -INT "$pid" || true
    done < <(comm -13 <(echo "$before") <(service_pid_files))
}

install_packages() {
    local services status=0
    if [[ $(id -u) -ne 0 ]] && ! sudo -n true 2>/dev/null; then
        echo "cannot install $*: neither root nor passwordless sudo" >&2
        return 1
    fi
    services=$(service_pid_files)
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 \
        install --yes --quiet --no-install-recommends "$@" || status=$?
    stop_new_services "$services"
    return "$status"
}

install_missing_packages() {
    local missing package packages
    missing=$(prerequisites_missing)
    [[ -n $missing ]] || return 0
    if [[ $missing == *clippy* || $missing == *rustfmt* ]] && command -v rustup >/dev/null; then
        # Debian's packages conflict with rustup, so rustup adds the missing components.
        rustup component add clippy rustfmt || true
        missing=$(prerequisites_missing)
    fi
    mapfile -t packages < <(awk 'NF { print $2 }' <<<"$missing")
    ((${#packages[@]})) || return 0
    echo "installing: ${packages[*]}"
    as_root apt-get -o DPkg::Lock::Timeout=300 update --quiet || true
    if ! install_packages "${packages[@]}"; then
        # Install one by one: a package that is not available must not prevent the others, and its name must be shown.
        for package in "${packages[@]}"; do
            install_packages "$package" || true
        done
    fi
}

install_cargo_tool() {
    local subcommand=$1 crate=$2 version=$3 tools=${target:?}/tools
    if cargo "$subcommand" --version >/dev/null 2>&1; then
        return 0
    fi
    echo "building $crate $version into $tools; this takes minutes, once"
    # Without optimization: the tools run for seconds, and an optimized build takes minutes.
    cargo install --quiet --debug --locked --root "$tools" --target-dir "$tools/build" "$crate@$version" || true
    rm -rf "$tools/build"
    cargo "$subcommand" --version >/dev/null 2>&1
}

# Third-party clients, each set in its own folder.
install_python_client() {
    local package=$1 module=$2 venv=${target:?}/clients/venv
    if ! "$venv/bin/python" -c "import $module" 2>/dev/null; then
        echo "fetching $package into $venv"
        { [[ -x $venv/bin/python ]] || python3 -m venv "$venv"; } && "$venv/bin/python" -m pip install --quiet "$package" || true
    fi
    "$venv/bin/python" -c "import $module" 2>/dev/null
}

install_npm_client() {
    local package=$1 node=${target:?}/clients/node
    if [[ ! -d $node/node_modules/${package%@*} ]]; then
        echo "fetching $package into $node"
        mkdir -p "$node" && npm install --silent --no-audit --no-fund --prefix "$node" "$package" || true
    fi
    [[ -d $node/node_modules/${package%@*} ]]
}

# What the checks of the SDKs need (scripts/sdk), below target/sdk. The versions are in the folder of each SDK.
install_sdk_tools_python() {
    local venv=${target:?}/sdk/python requirements=${root:?}/sdk/python/requirements.txt
    if ! cmp --silent "$requirements" "$venv/requirements.txt"; then
        echo "fetching the requirements of sdk/python into $venv"
        rm -rf "$venv"
        python3 -m venv "$venv" && "$venv/bin/python" -m pip install --quiet --only-binary :all: --requirement "$requirements" &&
            cp "$requirements" "$venv/requirements.txt" || true
    fi
    cmp --silent "$requirements" "$venv/requirements.txt"
}

install_sdk_tools_pyright() {
    local node=${target:?}/sdk/node
    if ! grep -qsF "\"version\": \"$NPM_PYRIGHT\"" "$node/node_modules/pyright/package.json"; then
        echo "fetching pyright into $node"
        mkdir -p "$node" && npm install --silent --no-audit --no-fund --prefix "$node" "pyright@$NPM_PYRIGHT" || true
    fi
    [[ -x $node/node_modules/.bin/pyright ]]
}

rust_version_wanted() {
    sed -n 's/^rust-version = "\(.*\)"/\1/p' "${root:?}/Cargo.toml"
}

# Fails if the compiler is older than the workspace requires. Cargo would report it much later.
rust_is_recent() {
    local wanted have
    wanted=$(rust_version_wanted)
    have=$(rustc --version 2>/dev/null | awk '{ print $2 }')
    [[ -n $have && $(printf '%s\n' "$wanted" "$have" | sort --version-sort | head -n 1) == "$wanted" ]]
}

# Installs what is missing and prints the names of what could not be installed. Arguments: the parts that will run. Only
# the Cargo tools of these parts are built.
prerequisites_install() {
    local part
    install_missing_packages >&2
    prerequisites_missing | awk '{ print $1 }'
    rust_is_recent || echo "rustc>=$(rust_version_wanted)"
    for part in "$@"; do
        case $part in
        deny) install_cargo_tool deny cargo-deny "$DENY_VERSION" >&2 || echo cargo-deny ;;
        clients)
            install_python_client "standardwebhooks==$PYPI_STANDARDWEBHOOKS" standardwebhooks >&2 || echo pypi:standardwebhooks
            install_python_client "cloudevents==$PYPI_CLOUDEVENTS" cloudevents >&2 || echo pypi:cloudevents
            install_python_client "schemathesis==$PYPI_SCHEMATHESIS" schemathesis >&2 || echo pypi:schemathesis
            install_python_client "mcp==$PYPI_MCP" mcp >&2 || echo pypi:mcp
            install_python_client "openai==$PYPI_OPENAI" openai >&2 || echo pypi:openai
            install_python_client "numpy==$PYPI_NUMPY" numpy >&2 || echo pypi:numpy
            install_npm_client "standardwebhooks@$NPM_STANDARDWEBHOOKS" >&2 || echo npm:standardwebhooks
            ;;
        sdk)
            install_sdk_tools_python >&2 || echo pypi:sdk/python/requirements.txt
            install_sdk_tools_pyright >&2 || echo npm:pyright
            ;;
        browser) install_npm_client "axe-core@$NPM_AXE" >&2 || echo npm:axe-core ;;
        tests | torture | mutants) install_cargo_tool nextest cargo-nextest "$NEXTEST_VERSION" >&2 || echo cargo-nextest ;;
        esac
    done
}
