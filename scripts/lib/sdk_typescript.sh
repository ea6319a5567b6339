# shellcheck shell=bash
# The checks of the TypeScript SDK. Sourced by scripts/sdk, which sets `root` and `target`.
#
# They work on a copy in target/sdk/typescript, so that packages and build outputs stay out of the sources.

# The oldest Node.js that the SDK supports and the newest that npm has. Debian 12 has an older one.
readonly NODE_OLDEST=20.20.2 NODE_NEWEST=26.10.0

sdk_typescript() {
    local scratch=$1 copy=${target:?}/sdk/typescript tests oldest newest
    install_sdk_tools_python # PyYAML, for the conformance suite
    oldest=$(typescript_node "$NODE_OLDEST")
    newest=$(typescript_node "$NODE_NEWEST")
    local PATH=$oldest:$PATH
    typescript_build
    find sdk/typescript/src -name '*.ts' ! -name wire.ts -exec grep -hvE '^ *(//|/?\*|$)' {} + | count_lines "sdk/typescript"
    typescript_reference | reference_page docs/reference/typescript.md check
    (
        cd "$copy"
        node_modules/.bin/biome ci --colors=off --error-on-warnings
        node scripts/extract-code.mjs build-readme README.md "$root"/docs/guides/typescript{,-workflows}.md
        node_modules/.bin/tsc -p tsconfig.tests.json
        node scripts/check-package.mjs "$scratch/typescript"
        # A test that hangs fails.
        timeout 300 node --test --test-force-exit --test-reporter=spec build-tests/test/*.test.js
        # Those that kill workers run with one version only.
        mapfile -t tests < <(printf '%s\n' build-tests/test/*.test.js | grep -v /cli.test.js)
        PATH=$newest:$PATH timeout 300 node --test --test-force-exit --test-reporter=spec "${tests[@]}"
    )
    PYTHONDONTWRITEBYTECODE=1 "$target/sdk/python/bin/python" sdk/conformance/run.py -- \
        node "$copy/build-tests/conformance/program.js"
}

sdk_typescript_build() {
    local oldest
    oldest=$(typescript_node "$NODE_OLDEST")
    PATH=$oldest:$PATH typescript_build >&2
    printf '%s\n' "$target/sdk/typescript" "$oldest"
}

sdk_typescript_generate() {
    local oldest
    oldest=$(typescript_node "$NODE_OLDEST")
    local PATH=$oldest:$PATH
    typescript_build
    WINDLASS_BIN=${WINDLASS_BIN:-$target/debug/windlass} node "$target/sdk/typescript/scripts/generate-wire.mjs" \
        >"$target/sdk/typescript/wire.ts"
    cp "$target/sdk/typescript/wire.ts" sdk/typescript/src/wire.ts
    typescript_build
    typescript_reference | reference_page docs/reference/typescript.md generate
}

# Copies the sources, installs the packages of the lock file and builds both module formats.
typescript_build() {
    local copy=$target/sdk/typescript
    if grep -q '"resolved"' sdk/typescript/package-lock.json; then
        echo "scripts/sdk: package-lock.json has download addresses; run: npm install --omit-lockfile-registry-resolved" >&2
        return 1
    fi
    mkdir -p "$copy"
    find "$copy" -mindepth 1 -maxdepth 1 ! -name node_modules ! -name packages.installed -exec rm -rf {} +
    tar -C sdk/typescript --create --exclude=./node_modules --exclude=./dist . | tar -C "$copy" --extract
    if ! cmp --silent "$copy/package-lock.json" "$copy/packages.installed"; then
        (cd "$copy" && npm ci --no-audit --no-fund --ignore-scripts)
        cp "$copy/package-lock.json" "$copy/packages.installed"
    fi
    "$copy/build"
}

typescript_reference() {
    node "$target/sdk/typescript/scripts/generate-reference.mjs"
}

# Prints the folder of a version of Node.js. npm distributes one package for each platform.
typescript_node() {
    local folder=$target/sdk/node-$1 package
    package=node-$(node -p 'process.platform + "-" + process.arch')
    if [[ ! -x $folder/node_modules/$package/bin/node ]]; then
        npm install --prefix "$folder" --no-audit --no-fund --no-save "$package@$1" >&2
    fi
    echo "$folder/node_modules/$package/bin"
}
