//! Scripts that misbehave end at a ceiling; scripts that behave reach their host and nothing else (T11).

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use script::{Host, HostError, HttpAnswer, HttpRequest, Input, Limits, Ran, ScriptError, Stopped, check, run};
use serde_json::{Value, json};

/// Writes down what it is asked for, and refuses what its principal may not.
#[derive(Default)]
struct Recorder {
    asked: Mutex<Vec<String>>,
}

impl Recorder {
    fn note(&self, text: String) {
        self.asked.lock().expect("nobody panics").push(text);
    }
}

impl Host for Recorder {
    fn enqueue(&self, job: Value) -> Result<Option<String>, HostError> {
        self.note(format!("enqueue {job}"));
        Ok(Some("01890a5d-ac96-774b-bcce-b302099a8057".into()))
    }

    fn kv_get(&self, collection: &str, key: &str) -> Result<Option<Value>, HostError> {
        self.note(format!("get {collection} {key}"));
        Ok((key == "known").then(|| json!({"n": [1, 2.5, null, "x"]})))
    }

    fn kv_set(&self, collection: &str, key: &str, value: Value) -> Result<(), HostError> {
        self.note(format!("set {collection} {key} {value}"));
        if collection == "secret" { Err(HostError("you may not write secret".into())) } else { Ok(()) }
    }

    fn kv_delete(&self, collection: &str, key: &str) -> Result<bool, HostError> {
        self.note(format!("delete {collection} {key}"));
        Ok(true)
    }

    fn publish(&self, topic: &str, data: Value) -> Result<String, HostError> {
        self.note(format!("publish {topic} {data}"));
        Ok("event".into())
    }

    fn http(&self, request: HttpRequest, time_left: Duration) -> Result<HttpAnswer, HostError> {
        assert!(time_left <= Limits::default().time);
        self.note(format!("{} {} {:?} {}", request.method, request.url, request.headers, request.body));
        Ok(HttpAnswer { status: 201, body: "made".into() })
    }

    fn resolve(&self, dead_letter: &str, note: Option<&str>) -> Result<(), HostError> {
        self.note(format!("resolve {dead_letter} {note:?}"));
        Ok(())
    }
}

fn input() -> Input {
    Input { event: json!({"id": "e1"}), data: json!({"n": 7, "tags": ["a"]}) }
}

fn go(source: &str) -> Result<Ran, Stopped> {
    run(source, &input(), Arc::new(Recorder::default()), &Limits::default())
}

#[test]
fn t11_a_script_sees_its_event_and_reaches_its_host() {
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
    let ran = run(source, &input(), host.clone(), &Limits::default()).expect("it runs");
    let id = "01890a5d-ac96-774b-bcce-b302099a8057";
    assert_eq!(ran.result, json!({"id": id, "status": 201, "body": "made"}));
    assert_eq!(ran.log, ["n is 42", "201"]);
    assert_eq!(
        *host.asked.lock().expect("nobody panics"),
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
fn ceiling(source: &str) {
    let started = Instant::now();
    match go(source) {
        Err(Stopped { error: ScriptError::Ceiling(_), .. }) => {}
        other => panic!("{source}: {other:?}"),
    }
    assert!(started.elapsed() < Duration::from_secs(20), "{source} took {:?}", started.elapsed());
}

#[test]
fn t11_endless_loops_end_at_a_ceiling() {
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
        ceiling(source);
    }
}

#[test]
fn t11_memory_has_a_ceiling() {
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
        ceiling(source);
    }
}

#[test]
fn t11_texts_that_are_changed_within_their_bounds_are_changed() {
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
        let ran = go(source).unwrap_or_else(|stopped| panic!("{source}: {stopped}"));
        assert_eq!(ran.result, json!(expected), "{source}");
    }
}

#[test]
fn t11_what_nests_too_deep_does_not_leave_the_script() {
    let deep = "let a = []; for i in 0..200 { a = [a]; }";
    for use_it in ["a", "#{a: a}", "kv_set(\"c\", \"k\", a)", "publish(\"t\", #{a: a})", "enqueue(#{payload: a})"] {
        ceiling(&format!("{deep} {use_it}"));
    }
    let allowed = go("let a = []; for i in 0..99 { a = [a]; } a").expect("a hundred levels");
    assert_eq!(allowed.result.to_string().matches('[').count(), 100);
}

#[test]
fn t11_a_ceiling_cannot_be_caught() {
    for source in [
        "for i in 0..200 { try { kv_get(\"c\", \"k\"); } catch { } } 1",
        "fn f() { kv_get(\"c\", \"k\"); } for i in 0..200 { try { f(); } catch { } } 1",
    ] {
        ceiling(source);
    }
    let stopped = go("loop { kv_get(\"c\", \"k\"); }").expect_err("a ceiling");
    assert_eq!(stopped.error, ScriptError::Ceiling("more than 100 calls".into()));
}

#[test]
fn t11_deep_nesting_of_calls_values_and_source_ends_in_an_error_and_not_in_a_crash() {
    let deep = |open: &str, close: &str, depth: usize| format!("{}1{}", open.repeat(depth), close.repeat(depth));
    for source in
        [deep("(", ")", 10_000), deep("[", "]", 10_000), deep("{", "}", 10_000), deep("if true {", "}", 5_000)]
    {
        assert!(go(&source).is_err());
        assert!(check(&source).is_err());
    }
    assert!(go(&format!("{}1", "-".repeat(20_000))).is_err());
    assert!(go(&format!("1{}", "+1".repeat(20_000))).is_err());
    assert!(go("fn f(n) { if n == 0 { 0 } else { 1 + f(n - 1) } } f(10)").is_ok());
}

#[test]
fn t11_there_is_no_way_out() {
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
        assert!(go(source).is_err(), "{source}");
        assert!(started.elapsed() < Duration::from_secs(5), "{source}");
    }
}

#[test]
fn t11_output_and_log_have_ceilings_and_the_log_is_kept_when_a_script_fails() {
    ceiling("let a = []; for i in 0..5000 { a.push(\"0123456789\"); } a.map(|x| x + \"0123456789\")");
    let ran = go("for i in 0..2000 { log(\"line \" + i); } 1").expect("the log is cut, not the script");
    assert!(ran.log.len() <= Limits::default().log_lines + 1);
    assert!(ran.log.last().is_some_and(|line| line.contains("cut")));
    let stopped = go("log(\"before\\u0000\"); throw \"enough\"").expect_err("it throws");
    assert_eq!(stopped.log, ["before\u{fffd}"]);
    assert_eq!(stopped.error, ScriptError::Failed { message: "enough".into(), line: 1 });
}

#[test]
fn t11_what_the_principal_may_not_do_fails_and_can_be_caught() {
    let stopped = go("kv_set(\"secret\", \"k\", 1)").expect_err("it may not");
    assert!(stopped.error.to_string().contains("you may not write secret"), "{}", stopped.error);
    assert_eq!(
        go("let x = 1; try { kv_set(\"secret\", \"k\", 1); } catch { x = 2; } x").expect("it caught that").result,
        json!(2)
    );
}

#[test]
fn t11_a_script_that_cannot_run_is_refused_with_its_line() {
    assert_eq!(check("let x = 1;\nx + 1"), Ok(()));
    assert!(matches!(check("let x = 1;\nlet = 2"), Err(ScriptError::Syntax { line: 2, .. })));
    assert!(matches!(check(&" ".repeat(1 << 20)), Err(ScriptError::Ceiling(_))));
    assert!(matches!(go("http(#{uri: \"x\"})"), Err(Stopped { error: ScriptError::Failed { .. }, .. })));
    assert_eq!(go("exit(5); 6").expect("it left early").result, json!(5));
    assert_eq!(go("").expect("nothing is something").result, Value::Null);
}
