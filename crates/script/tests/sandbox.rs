//! The script sandbox: misbehaving scripts are stopped at a limit, and scripts reach only their host functions.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use script::{
    Host, HostError, HttpRequest, HttpResponse, Input, Limits, ScriptError, ScriptOutput, Stopped, check, run,
};
use serde_json::{Value, json};

/// A host that records its calls, and rejects writes to the collection `secret`.
#[derive(Default)]
struct Recorder {
    calls: Mutex<Vec<String>>,
}

impl Recorder {
    fn record(&self, call: String) {
        self.calls.lock().expect("lock poisoned").push(call);
    }
}

impl Host for Recorder {
    fn enqueue(&self, job: Value) -> Result<Option<String>, HostError> {
        self.record(format!("enqueue {job}"));
        Ok(Some("01890a5d-ac96-774b-bcce-b302099a8057".into()))
    }

    fn kv_get(&self, collection: &str, key: &str) -> Result<Option<Value>, HostError> {
        self.record(format!("get {collection} {key}"));
        Ok((key == "known").then(|| json!({"n": [1, 2.5, null, "x"]})))
    }

    fn kv_set(&self, collection: &str, key: &str, value: Value) -> Result<(), HostError> {
        self.record(format!("set {collection} {key} {value}"));
        if collection == "secret" { Err(HostError("you may not write secret".into())) } else { Ok(()) }
    }

    fn kv_delete(&self, collection: &str, key: &str) -> Result<bool, HostError> {
        self.record(format!("delete {collection} {key}"));
        Ok(true)
    }

    fn publish(&self, topic: &str, data: Value) -> Result<String, HostError> {
        self.record(format!("publish {topic} {data}"));
        Ok("event".into())
    }

    fn http(&self, request: HttpRequest, time_left: Duration) -> Result<HttpResponse, HostError> {
        assert!(time_left <= Limits::default().time);
        self.record(format!("{} {} {:?} {}", request.method, request.url, request.headers, request.body));
        Ok(HttpResponse { status: 201, body: "made".into() })
    }

    fn resolve(&self, dead_letter: &str, note: Option<&str>) -> Result<(), HostError> {
        self.record(format!("resolve {dead_letter} {note:?}"));
        Ok(())
    }
}

fn input() -> Input {
    Input { event: json!({"id": "e1"}), data: json!({"n": 7, "tags": ["a"]}) }
}

fn run_script(source: &str) -> Result<ScriptOutput, Stopped> {
    run(source, &input(), Arc::new(Recorder::default()), &Limits::default())
}

/// Requirement T11.
#[test]
fn a_script_reads_its_event_and_calls_host_functions() {
    let host = Arc::new(Recorder::default());
    let source = r#"
        let n = data.n * 6;
        let id = enqueue(#{queue: "q", kind: "k", payload: #{n: n}});
        let old = kv_get("c", "known").n[1];
        if kv_get("c", "unknown") == () { kv_set("c", "unknown", #{old: old}); }
        kv_delete("c", "gone");
        publish("t", [1, "two", ()]);
        let answer = http(#{url: "https://example.com", headers: #{"x-y": "z"}, body: #{n: n}});
        resolve("letter", "by script");
        log("n is " + n);
        print(answer.status);
        #{id: id, status: answer.status, body: answer.body}
    "#;
    let ran = run(source, &input(), host.clone(), &Limits::default()).expect("the script succeeds");
    let id = "01890a5d-ac96-774b-bcce-b302099a8057";
    assert_eq!(ran.result, json!({"id": id, "status": 201, "body": "made"}));
    assert_eq!(ran.log, ["n is 42", "201"]);
    assert_eq!(
        *host.calls.lock().expect("lock poisoned"),
        [
            r#"enqueue {"kind":"k","payload":{"n":42},"queue":"q"}"#,
            "get c known",
            "get c unknown",
            r#"set c unknown {"old":2.5}"#,
            "delete c gone",
            r#"publish t [1,"two",null]"#,
            r#"POST https://example.com [("x-y", "z")] {"n":42}"#,
            r#"resolve letter Some("by script")"#,
        ]
    );
}

#[track_caller]
fn assert_stopped_at_limit(source: &str) {
    let started = Instant::now();
    match run_script(source) {
        Err(Stopped { error: ScriptError::Ceiling(_), .. }) => {}
        other => panic!("{source}: {other:?}"),
    }
    assert!(started.elapsed() < Duration::from_secs(20), "{source} took {:?}", started.elapsed());
}

/// Requirement T11.
#[test]
fn an_endless_loop_ends_at_a_limit() {
    for source in [
        "loop { }",
        "while true { let x = 1; }",
        "for i in 0..9223372036854775807 { log(i); }",
        "fn f() { f() } f()",
        "fn a(n) { b(n + 1) } fn b(n) { a(n + 1) } a(0)",
        "let f = |n| n; loop { f.call(1); }",
        "do { } while true",
        "let n = 0; loop { try { n += 1; throw n; } catch { } }",
        "loop { try { loop { } } catch { } }",
        "loop { kv_get(\"c\", \"k\"); }",
        "loop { try { kv_get(\"c\", \"k\"); } catch { } }",
        "let a = []; loop { a.push(1); a.sort(|x, y| 1); }",
    ] {
        assert_stopped_at_limit(source);
    }
}

/// Requirement T11.
#[test]
fn memory_is_limited() {
    for source in [
        "let s = \"x\"; loop { s += s; }",
        "let s = \"x\"; s.pad(1000000000, 'y'); s",
        "let a = []; loop { a.push(\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"); }",
        "let a = []; a.pad(1000000000, 0); a",
        "let a = [1]; loop { a += a; }",
        "let a = [0]; loop { a = [a, a, a, a]; }",
        "let m = #{}; let i = 0; loop { m[\"k\" + i] = i; i += 1; }",
        "let m = #{}; loop { m = #{a: m, b: m}; }",
        "let b = blob(1000000000, 0); b",
        "let s = \"\"; for i in 0..1000000 { s = `${s}${s}x`; } s",
        "let a = []; for i in 0..100 { let s = \"x\"; s.pad(60000, 'y'); a.push(s); } a",
        "let s = \"\"; s.pad(200000, 'x'); let t = s; s.replace(\"x\", t); s",
        "let s = \"\"; s.pad(200000, 'x'); let t = s; s.replace(\"\", t); s",
        "let s = \"\"; s.pad(200000, 'x'); let t = s; s.replace('x', t); s",
        "let s = \"\"; s.pad(200000, 'x'); s.replace(\"x\", '\u{1f980}'); s",
        "let s = \"\"; s.pad(200000, 'x'); s.replace('x', '\u{1f980}'); s",
        "let s = \"x\"; s.pad(1000000000, \"yz\"); s",
        "let s = \"\"; s.pad(200000, 'x'); let a = []; loop { a.push(s.chars()); }",
        "let s = \"\"; s.pad(200000, 'x'); let a = []; loop { a.push(s.chars(1)); a.push(s.chars); }",
    ] {
        assert_stopped_at_limit(source);
    }
}

/// Requirement T11.
#[test]
fn text_functions_work_within_the_size_limit() {
    for (source, expected) in [
        (r#"let s = "hello"; s.replace("l", "(^)"); s"#, "he(^)(^)o"),
        (r#"let s = "hello"; s.replace("l", '*'); s"#, "he**o"),
        (r#"let s = "hello"; s.replace('l', "__"); s"#, "he____o"),
        (r#"let s = "hello"; s.replace('l', 'L'); s"#, "heLLo"),
        (r#"let s = "ab"; s.replace("", "-"); s"#, "-a-b-"),
        (r#"let s = "abc"; s.pad(8, "12"); s"#, "abc12121"),
        (r#"let s = "abc"; s.pad(8, ""); s"#, "abc"),
        (r#"let s = ""; for c in "hello".chars() { s += c; } s"#, "hello"),
        (r#"let s = ""; for c in "hello".chars(1..3) { s += c; } s"#, "el"),
        (r#"let s = ""; for c in "hello".chars(1..=3) { s += c; } s"#, "ell"),
        (r#"let s = ""; for c in "hello".chars(-2) { s += c; } s"#, "lo"),
        (r#"let s = ""; for c in "hello".chars(2, 2) { s += c; } s"#, "ll"),
        (r#"let s = ""; for c in "hello".chars { s += c; } s"#, "hello"),
    ] {
        let ran = run_script(source).unwrap_or_else(|stopped| panic!("{source}: {stopped}"));
        assert_eq!(ran.result, json!(expected), "{source}");
    }
}

/// Requirement T11.
#[test]
fn a_value_nested_too_deeply_cannot_leave_the_script() {
    let deep = "let a = []; for i in 0..200 { a = [a]; }";
    for use_it in ["a", "#{a: a}", "kv_set(\"c\", \"k\", a)", "publish(\"t\", #{a: a})", "enqueue(#{payload: a})"] {
        assert_stopped_at_limit(&format!("{deep} {use_it}"));
    }
    let allowed = run_script("let a = []; for i in 0..99 { a = [a]; } a").expect("a hundred levels are allowed");
    assert_eq!(allowed.result.to_string().matches('[').count(), 100);
}

/// Requirement T11.
#[test]
fn a_limit_error_cannot_be_caught() {
    for source in [
        "for i in 0..200 { try { kv_get(\"c\", \"k\"); } catch { } } 1",
        "fn f() { kv_get(\"c\", \"k\"); } for i in 0..200 { try { f(); } catch { } } 1",
    ] {
        assert_stopped_at_limit(source);
    }
    let stopped = run_script("loop { kv_get(\"c\", \"k\"); }").expect_err("the script is stopped");
    assert_eq!(stopped.error, ScriptError::Ceiling("more than 100 calls".into()));
}

/// Requirement T11.
#[test]
fn deep_nesting_is_an_error_and_not_a_crash() {
    let deep = |open: &str, close: &str, depth: usize| format!("{}1{}", open.repeat(depth), close.repeat(depth));
    for source in
        [deep("(", ")", 10_000), deep("[", "]", 10_000), deep("{", "}", 10_000), deep("if true {", "}", 5_000)]
    {
        assert!(run_script(&source).is_err());
        assert!(check(&source).is_err());
    }
    assert!(run_script(&format!("{}1", "-".repeat(20_000))).is_err());
    assert!(run_script(&format!("1{}", "+1".repeat(20_000))).is_err());
    assert!(run_script("fn f(n) { if n == 0 { 0 } else { 1 + f(n - 1) } } f(10)").is_ok());
}

/// Requirement T11.
#[test]
fn a_script_cannot_escape_the_sandbox() {
    for source in [
        "import \"/etc/passwd\" as x; 1",
        "import \"std::fs\" as fs; fs::read(\"/etc/passwd\")",
        "eval(\"1 + 1\")",
        "let f = |n| n; for i in 0..100 { f = f.curry(f); } 1",
        "sleep(1000000)",
        "sleep(0.5)",
        "open_file(\"/etc/passwd\")",
        "system(\"id\")",
        "exec(\"id\")",
        "timestamp()",
        "env(\"HOME\")",
        "run(\"x\")",
        "this.x",
        "event.id = 7; event",
        "data.n = 8; data",
        "undeclared",
    ] {
        let started = Instant::now();
        assert!(run_script(source).is_err(), "{source}");
        assert!(started.elapsed() < Duration::from_secs(5), "{source}");
    }
}

/// Requirement T11.
#[test]
fn output_and_log_are_limited_and_a_failed_script_keeps_its_log() {
    assert_stopped_at_limit("let a = []; for i in 0..5000 { a.push(\"0123456789\"); } a.map(|x| x + \"0123456789\")");
    let ran =
        run_script("for i in 0..2000 { log(\"line \" + i); } 1").expect("the log is truncated, the script continues");
    assert!(ran.log.len() <= Limits::default().log_lines + 1);
    assert!(ran.log.last().is_some_and(|line| line.contains("truncated")));
    let stopped = run_script("log(\"before\\u0000\"); throw \"enough\"").expect_err("the script throws");
    assert_eq!(stopped.log, ["before\u{fffd}"]);
    assert_eq!(stopped.error, ScriptError::Failed { message: "enough".into(), line: 1 });
}

/// Requirement T11.
#[test]
fn a_forbidden_effect_is_an_error_that_can_be_caught() {
    let stopped = run_script("kv_set(\"secret\", \"k\", 1)").expect_err("the write is rejected");
    assert!(stopped.error.to_string().contains("you may not write secret"), "{}", stopped.error);
    assert_eq!(
        run_script("let x = 1; try { kv_set(\"secret\", \"k\", 1); } catch { x = 2; } x")
            .expect("the error is caught")
            .result,
        json!(2)
    );
}

/// Requirement T11.
#[test]
fn an_invalid_script_is_rejected_with_its_line() {
    assert_eq!(check("let x = 1;\nx + 1"), Ok(()));
    assert!(matches!(check("let x = 1;\nlet = 2"), Err(ScriptError::Syntax { line: 2, .. })));
    assert!(matches!(check(&" ".repeat(1 << 20)), Err(ScriptError::Ceiling(_))));
    assert!(matches!(run_script("http(#{uri: \"x\"})"), Err(Stopped { error: ScriptError::Failed { .. }, .. })));
    assert_eq!(run_script("exit(5); 6").expect("the script exits early").result, json!(5));
    assert_eq!(run_script("").expect("an empty script succeeds").result, Value::Null);
}
