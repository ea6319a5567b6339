//! The sandbox for trigger scripts: Rhai with limits on operations, depth, memory, time, calls and output.
//!
//! A script sees its event and the functions of its [`Host`], which act with the rights of the trigger's principal. It
//! has no files, no clock, no modules and no threads. Only its log and the effects of its host functions outlive a run.

mod functions;
mod growth;
mod limits;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rhai::serde::to_dynamic;
use rhai::{Dynamic, Engine, EvalAltResult, ParseError, Scope};
use serde_json::Value;

use functions::Run;
pub use limits::Limits;

/// Deep but bounded recursion needs more stack than a pool thread has: a value may nest as deep as it may have items,
/// and is copied, printed and dropped level by level. Unused stack is not allocated.
const STACK_BYTES: usize = 128 << 20;

/// The effects that a script can have, with the rights of its principal. Calls are sequential and may block.
pub trait Host: Send + Sync + 'static {
    /// True if the script must be aborted.
    fn is_stopped(&self) -> bool {
        false
    }
    /// Creates a job. Returns its id, if already known. `job` has the members of an enqueue request.
    fn enqueue(&self, job: Value) -> Result<Option<String>, HostError>;
    fn kv_get(&self, collection: &str, key: &str) -> Result<Option<Value>, HostError>;
    fn kv_set(&self, collection: &str, key: &str, value: Value) -> Result<(), HostError>;
    /// Returns true if the key existed.
    fn kv_delete(&self, collection: &str, key: &str) -> Result<bool, HostError>;
    /// Returns the id of the event.
    fn publish(&self, topic: &str, data: Value) -> Result<String, HostError>;
    /// Must return within `remaining`.
    fn http(&self, request: HttpRequest, remaining: Duration) -> Result<HttpResponse, HostError>;
    fn resolve(&self, dead_letter: &str, note: Option<&str>) -> Result<(), HostError>;
}

/// Why a host function failed, as a message for the script's author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HostError(pub String);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRequest {
    pub method: String,
    pub url: String,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpResponse {
    pub status: u16,
    pub body: String,
}

/// The constants that a script can read.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    pub event: Value,
    pub data: Value,
}

/// A script that completed.
#[derive(Clone, Debug)]
pub struct ScriptOutput {
    /// The value of its last expression.
    pub result: Value,
    pub log: Vec<String>,
}

/// A script that was aborted, with its log so far.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error}")]
pub struct Stopped {
    pub error: ScriptError,
    pub log: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    #[error("line {line}: {message}")]
    Syntax { message: String, line: usize },
    /// It exceeded a limit.
    #[error("the script exceeded a limit: {0}")]
    Ceiling(String),
    /// It threw an error, or called a function that failed.
    #[error("line {line}: {message}")]
    Failed { message: String, line: usize },
}

/// Checks that a script compiles, without running it.
pub fn check(source: &str) -> Result<(), ScriptError> {
    let limits = Limits::default();
    within(source, &limits)?;
    engine(&limits)
        .compile_with_scope(&scope(Dynamic::UNIT, Dynamic::UNIT), source)
        .map(drop)
        .map_err(|error| syntax(&error))
}

/// Runs a script on an event, until its end or a limit. Blocks the calling thread.
pub fn run(source: &str, input: &Input, host: Arc<dyn Host>, limits: &Limits) -> Result<ScriptOutput, Stopped> {
    let run = Arc::new(Run::new(host, limits));
    let on_thread = || evaluate(source, input, &run, limits);
    // A thread of its own has its own stack, and contains a panic of the interpreter.
    let result = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("script".into()).stack_size(STACK_BYTES);
        match thread.spawn_scoped(scope, on_thread).map(|thread| thread.join()) {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(ScriptError::Failed { message: "the interpreter panicked".into(), line: 0 }),
            Err(error) => Err(ScriptError::Ceiling(format!("cannot start a thread: {error}"))),
        }
    });
    let log = run.take_log();
    match result {
        Ok(result) => Ok(ScriptOutput { result, log }),
        Err(error) => Err(Stopped { error, log }),
    }
}

fn evaluate(source: &str, input: &Input, run: &Arc<Run>, limits: &Limits) -> Result<Value, ScriptError> {
    within(source, limits)?;
    let mut engine = engine(limits);
    functions::register(&mut engine, run);
    growth::register(&mut engine, limits);
    let deadline = Instant::now() + limits.time;
    let stop = run.clone();
    engine.on_progress(move |_| (Instant::now() >= deadline || stop.is_stopped()).then(|| Dynamic::from("time")));
    let constant = |value: &Value| to_dynamic(value).map_err(|error| script_error(&error));
    let mut scope = scope(constant(&input.event)?, constant(&input.data)?);
    let ast = engine.compile_with_scope(&scope, source).map_err(|error| syntax(&error))?;
    let result = match engine.eval_ast_with_scope::<Dynamic>(&mut scope, &ast) {
        Ok(result) => result,
        Err(error) => match *error {
            EvalAltResult::Exit(value, _) => value,
            error => return Err(script_error(&error)),
        },
    };
    let result = functions::value(&result).map_err(|error| script_error(&error))?;
    let bytes = result.to_string().len();
    if bytes > limits.output_bytes {
        return Err(ScriptError::Ceiling(format!(
            "the result has {bytes} bytes; at most {} are allowed",
            limits.output_bytes
        )));
    }
    Ok(result)
}

/// The variables that a script can read at its start.
fn scope(event: Dynamic, data: Dynamic) -> Scope<'static> {
    let mut scope = Scope::new();
    scope.push_constant_dynamic("event", event);
    scope.push_constant_dynamic("data", data);
    scope
}

fn within(source: &str, limits: &Limits) -> Result<(), ScriptError> {
    if source.len() > limits.source_bytes {
        let detail = format!("the source has {} bytes; at most {} are allowed", source.len(), limits.source_bytes);
        return Err(ScriptError::Ceiling(detail));
    }
    Ok(())
}

fn engine(limits: &Limits) -> Engine {
    let mut engine = Engine::new();
    engine.set_max_operations(limits.operations);
    engine.set_max_call_levels(limits.call_depth);
    engine.set_max_expr_depths(limits.expression_depth, limits.expression_depth);
    engine.set_max_string_size(limits.string_bytes);
    engine.set_max_array_size(limits.items);
    engine.set_max_map_size(limits.items);
    engine.set_max_variables(limits.variables);
    engine.set_max_functions(limits.functions);
    // Code that is assembled at run time would be limited all the same, but a reader of the script would not see it.
    engine.disable_symbol("eval");
    // Curried arguments are not limited, and a function curried with itself doubles in size each time.
    engine.disable_symbol("curry");
    engine.set_strict_variables(true);
    engine
}

fn syntax(error: &ParseError) -> ScriptError {
    ScriptError::Syntax { message: error.err_type().to_string(), line: error.position().line().unwrap_or(0) }
}

fn script_error(error: &EvalAltResult) -> ScriptError {
    use EvalAltResult::{
        ErrorDataTooLarge, ErrorInFunctionCall, ErrorRuntime, ErrorStackOverflow, ErrorTerminated,
        ErrorTooManyOperations, ErrorTooManyVariables,
    };
    match error {
        ErrorInFunctionCall(_, _, inner, _) => script_error(inner),
        ErrorTooManyOperations(_) => ScriptError::Ceiling("too many operations".into()),
        ErrorStackOverflow(_) => ScriptError::Ceiling("calls nested too deeply".into()),
        ErrorTooManyVariables(_) => ScriptError::Ceiling("too many variables".into()),
        ErrorDataTooLarge(what, _) => ScriptError::Ceiling(format!("{what} too large")),
        ErrorTerminated(token, _) => {
            ScriptError::Ceiling(functions::ceiling_of(token).unwrap_or_else(|| "out of time".into()))
        }
        ErrorRuntime(value, position) => {
            ScriptError::Failed { message: value.to_string(), line: position.line().unwrap_or(0) }
        }
        error => ScriptError::Failed { message: without_position(error), line: error.position().line().unwrap_or(0) },
    }
}

/// The message without the position, which is reported separately.
fn without_position(error: &EvalAltResult) -> String {
    let text = error.to_string();
    text.rsplit_once(" (line ").map_or(text.clone(), |(message, _)| message.to_owned())
}
