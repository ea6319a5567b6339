# shellcheck shell=bash
# The checks of the Python SDK. Sourced by scripts/sdk, which sets `root` and `target`.

sdk_python() {
    local scratch=$1 tools=${target:?}/sdk/python/bin wheel empty=$1/python pyright=$target/sdk/node/node_modules/.bin/pyright
    install_sdk_tools_python
    install_sdk_tools_pyright
    # Sources, not the cache of a previous run: a build reads only what the package names.
    "$tools/python" -m build --wheel --no-isolation --outdir "$scratch" sdk/python >"$scratch/build.log" || {
        cat "$scratch/build.log"
        return 1
    }
    wheel=$(echo "$scratch"/windlass-*.whl)
    echo "built ${wheel##*/}"

    # The wheel alone in an empty environment: it has no dependencies.
    python3 -m venv --without-pip "$empty"
    "$tools/python" -m pip --quiet --python "$empty/bin/python" install --no-index "$wheel"
    "$empty/bin/windlass-worker" --help >/dev/null
    python3 scripts/lib/run_quick_start.py sdk/python/README.md python "$scratch/quick_start.py" "$empty/bin/python"

    "$tools/python" -m pip --quiet install --no-index --no-deps --force-reinstall "$wheel"
    python3 sdk/python/reference.py | reference_page docs/reference/python.md check
    # The optional integrations, which import other frameworks, are counted apart.
    python3 scripts/lib/python_code_lines.py sdk/python/src contrib | count_lines "sdk/python"
    python3 scripts/lib/python_code_lines.py sdk/python/src/windlass/contrib | count_lines "sdk/python, integrations"
    (
        cd sdk/python || exit
        "$tools/ruff" check --quiet --no-cache .
        "$tools/ruff" format --quiet --no-cache --check .
        "$tools/mypy" --cache-dir "$target/sdk/mypy"
        "$pyright" --pythonpath "$tools/python"
        PYTHONDONTWRITEBYTECODE=1 "$tools/python" -m pytest --quiet -p no:cacheprovider
    )
    PYTHONDONTWRITEBYTECODE=1 "$tools/python" sdk/conformance/run.py -- "$tools/python" sdk/python/conformance/program.py
}

sdk_python_generate() {
    python3 sdk/python/reference.py | reference_page docs/reference/python.md generate
}
