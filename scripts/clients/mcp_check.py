"""The official MCP client (PyPI's `mcp`) with `windlass mcp`, over stdio and over HTTP.

    mcp_check.py BINARY FOLDER

Called by scripts/clients-check with the Python of its virtual environment; FOLDER is empty. The server has tokens, so that each
connection shows the rights of its caller.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

BINARY, FOLDER = sys.argv[1], Path(sys.argv[2])
TOOLS = ["list", "show", "why", "signal", "history", "failures", "runs", "push", "replay", "cancel"]
LIMIT_S = 60


def result(answer):
    assert not answer.is_error, answer
    return answer.structured_content


def refusal(answer):
    assert answer.is_error, answer
    return answer.structured_content["error"]


async def read_and_change(mcp):
    """Uses every tool once. The connection has the rights of an admin and may change something."""
    tools = await mcp.list_tools()
    assert [tool.name for tool in tools.tools] == TOOLS, tools
    assert all(tool.input_schema["type"] == "object" for tool in tools.tools)
    job = {"queue": "mail", "kind": "welcome", "payload": {"to": "ann"}}
    planned = result(await mcp.call_tool("push", job))
    assert planned["dry_run"] is True and planned["estimate"]["ahead"] == 0, planned
    assert result(await mcp.call_tool("list", {}))["items"] == [], "a dry run changes nothing"
    pushed = result(await mcp.call_tool("push", {**job, "dry_run": False}))["id"]
    assert result(await mcp.call_tool("list", {"queue": "mail"}))["items"][0]["id"] == pushed
    assert result(await mcp.call_tool("list", {"what": "queues"}))["items"][0]["counts"]["queued"] == 1
    shown = result(await mcp.call_tool("show", {"job": "@last"}))
    assert shown["job"]["id"] == pushed and shown["job"]["payload"] == {"to": "ann"}, shown
    assert result(await mcp.call_tool("why", {"job": pushed[-6:]}))["reason"] == "no_worker"
    assert result(await mcp.call_tool("signal", {"job": pushed}))["signal"]["job_id"] == pushed
    history = result(await mcp.call_tool("history", {"job": pushed}))["items"]
    assert [item["event"] for item in history] == ["enqueued"], history
    assert result(await mcp.call_tool("failures", {}))["items"] == []
    assert result(await mcp.call_tool("runs", {}))["items"] == []
    mail = {"where": ["queue=mail"]}
    assert result(await mcp.call_tool("cancel", mail)) == {"dry_run": True, "matched": 1, "jobs": [pushed]}
    assert result(await mcp.call_tool("cancel", {**mail, "dry_run": False}))["canceled"] == [pushed]
    replayed = result(await mcp.call_tool("replay", {"job": pushed, "dry_run": False}))["retried"]
    assert len(replayed) == 1 and replayed[0] != pushed, replayed
    result(await mcp.call_tool("cancel", {"job": replayed[0], "dry_run": False}))
    assert "no argument" in refusal(await mcp.call_tool("list", {"colour": "red"}))


async def only_read(mcp, reason):
    """A connection that may not change anything."""
    assert len(result(await mcp.call_tool("list", {}))["items"]) == 2
    error = refusal(await mcp.call_tool("push", {"queue": "mail", "kind": "welcome", "dry_run": False}))
    assert reason in error, error
    assert len(result(await mcp.call_tool("list", {}))["items"]) == 2


async def over_stdio(url, token, *flags):
    variables = {**os.environ, "WINDLASS_URL": url, "WINDLASS_TOKEN": token}
    return StdioServerParameters(command=BINARY, args=["mcp", *flags], env=variables)


async def check(url, tokens, address):
    async with Client(await over_stdio(url, tokens["admin"], "--allow-changes"), read_timeout_seconds=LIMIT_S) as mcp:
        assert mcp.server_info.name == "windlass", mcp.server_info
        await read_and_change(mcp)
        print(f"PyPI's mcp used {len(TOOLS)} tools over stdio, protocol {mcp.protocol_version}")
    async with Client(await over_stdio(url, tokens["admin"]), read_timeout_seconds=LIMIT_S) as mcp:
        await only_read(mcp, "--allow-changes")
    async with Client(await over_stdio(url, tokens["viewer"], "--allow-changes"), read_timeout_seconds=LIMIT_S) as mcp:
        await only_read(mcp, "enqueue")
    for role, reason in (("viewer", "enqueue"), (None, None)):
        headers = {"Authorization": f"Bearer {tokens[role]}"} if role else {}
        async with httpx2.AsyncClient(headers=headers, timeout=LIMIT_S) as http:
            transport = streamable_http_client(f"{address}/mcp", http_client=http)
            async with Client(transport, read_timeout_seconds=LIMIT_S) as mcp:
                if role:
                    await only_read(mcp, reason)
                else:
                    # The process has the token of an admin, and must not lend it.
                    assert "token" in refusal(await mcp.call_tool("list", {}))
    async with httpx2.AsyncClient() as http:
        page = {"Origin": "https://evil.example", "Authorization": f"Bearer {tokens['admin']}"}
        answer = await http.post(f"{address}/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "ping"}, headers=page)
        assert answer.status_code == 403, answer
    print("PyPI's mcp connected over HTTP with the rights of each caller")


def main():
    database = f"sqlite:{FOLDER}/mcp.db"
    started = []

    def start(*args, **variables):
        program = subprocess.Popen(
            [BINARY, *args], cwd=FOLDER, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}
        )
        started.append(program)
        return program.stdout.readline()

    try:
        url = start("serve", "--listen", "127.0.0.1:0", "--database", database).split("serves on ")[1].split()[0]
        tokens = {}
        for role in ("admin", "viewer"):
            create = [BINARY, "token", "create", "--name", role, "--role", role, "--database", database]
            tokens[role] = subprocess.run(create, check=True, capture_output=True, text=True).stdout.strip()
        line = start("mcp", "--http", "127.0.0.1:0", "--allow-changes", WINDLASS_URL=url, WINDLASS_TOKEN=tokens["admin"])
        asyncio.run(check(url, tokens, line.split("MCP on ")[1].split("/mcp")[0]))
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(LIMIT_S)


if __name__ == "__main__":
    main()
