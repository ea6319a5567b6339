//! The sandbox for trigger scripts (T11): Rhai with ceilings on operations, depth, memory, time, calls and output.
//!
//! A script sees its event and the functions of its `Host`, which act with the rights of whoever registered it. It has no
//! files, no clock, no modules, no threads, and nothing of it outlives its run but its log and what its host did.

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

/// Deep but bounded recursion needs more than a pool's thread has: a value may nest as deep as it may have items, and is
/// copied, printed and dropped level by level. What is not used of it costs nothing.
const STACK_BYTES: usize = 128 << 20;

/// What a script may do to the world, with the rights of its principal. Calls come one at a time and may block.
pub trait Host: Send + Sync + 'static {
    /// Whether the script should end, wherever it is.
    fn is_stopped(&self) -> bool {
        false
    }
    /// Makes a job and gives its id, if that is known already. `job` has the members of an enqueue request.
    fn enqueue(&self, job: Value) -> Result<Option<String>, HostError>;
    fn kv_get(&self, collection: &str, key: &str) -> Result<Option<Value>, HostError>;
    fn kv_set(&self, collection: &str, key: &str, value: Value) -> Result<(), HostError>;
    /// Whether there was something to delete.
    fn kv_delete(&self, collection: &str, key: &str) -> Result<bool, HostError>;
    /// Gives the event's id.
    fn publish(&self, topic: &str, data: Value) -> Result<String, HostError>;
    /// Must answer within `time_left`.
    fn http(&self, request: HttpRequest, time_left: Duration) -> Result<HttpAnswer, HostError>;
    fn resolve(&self, dead_letter: &str, note: Option<&str>) -> Result<(), HostError>;
}

/// Why the host did not do it, in words for the script's author.
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
pub struct HttpAnswer {
    pub status: u16,
    pub body: String,
}

/// What a script begins with: two constants of these names.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    pub event: Value,
    pub data: Value,
}

/// A script that came to its end.
#[derive(Clone, Debug)]
pub struct Ran {
    /// What its last expression gave.
    pub result: Value,
    pub log: Vec<String>,
}

/// A script that did not, with what it had logged until then.
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
    /// It would have gone past what a script may use.
    #[error("the script reached its ceiling: {0}")]
    Ceiling(String),
    /// It threw, or called something that failed.
    #[error("line {line}: {message}")]
    Failed { message: String, line: usize },
}

/// Whether a script can run at all. Nothing of it is run.
pub fn check(source: &str) -> Result<(), ScriptError> {
    let limits = Limits::default();
    within(source, &limits)?;
    engine(&limits)
        .compile_with_scope(&scope(Dynamic::UNIT, Dynamic::UNIT), source)
        .map(drop)
        .map_err(|error| syntax(&error))
}

/// Runs a script on an event, until its end or a ceiling. Blocks the caller's thread.
pub fn run(source: &str, input: &Input, host: Arc<dyn Host>, limits: &Limits) -> Result<Ran, Stopped> {
    let run = Arc::new(Run::new(host, limits));
    let in_thread = || evaluate(source, input, &run, limits);
    // A thread of its own has a stack of its own, and a panic in the interpreter ends there.
    let result = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("script".into()).stack_size(STACK_BYTES);
        match thread.spawn_scoped(scope, in_thread).map(|thread| thread.join()) {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(ScriptError::Failed { message: "the interpreter failed".into(), line: 0 }),
            Err(error) => Err(ScriptError::Ceiling(format!("no thread to run in: {error}"))),
        }
    });
    let log = run.take_log();
    match result {
        Ok(result) => Ok(Ran { result, log }),
        Err(error) => Err(Stopped { error, log }),
    }
}

fn evaluate(source: &str, input: &Input, run: &Arc<Run>, limits: &Limits) -> Result<Value, ScriptError> {
    within(source, limits)?;
    let mut engine = engine(limits);
    functions::register(&mut engine, run);
    growth::register(&mut engine, limits);
    let deadline = Instant::now() + limits.time;
    let stopping = run.clone();
    engine.on_progress(move |_| (Instant::now() >= deadline || stopping.is_stopped()).then(|| Dynamic::from("time")));
    let given = |value: &Value| to_dynamic(value).map_err(|error| told(&error));
    let mut scope = scope(given(&input.event)?, given(&input.data)?);
    let ast = engine.compile_with_scope(&scope, source).map_err(|error| syntax(&error))?;
    let result = match engine.eval_ast_with_scope::<Dynamic>(&mut scope, &ast) {
        Ok(result) => result,
        Err(error) => match *error {
            EvalAltResult::Exit(value, _) => value,
            error => return Err(told(&error)),
        },
    };
    let result = functions::value(&result).map_err(|error| told(&error))?;
    let bytes = result.to_string().len();
    if bytes > limits.output_bytes {
        return Err(ScriptError::Ceiling(format!("its result has {bytes} bytes of at most {}", limits.output_bytes)));
    }
    Ok(result)
}

/// All that a script finds when it begins.
fn scope(event: Dynamic, data: Dynamic) -> Scope<'static> {
    let mut scope = Scope::new();
    scope.push_constant_dynamic("event", event);
    scope.push_constant_dynamic("data", data);
    scope
}

fn within(source: &str, limits: &Limits) -> Result<(), ScriptError> {
    if source.len() > limits.source_bytes {
        let detail = format!("it has {} bytes of at most {}", source.len(), limits.source_bytes);
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
    // A text that becomes code would be counted all the same, but nobody who reads the script would see it.
    engine.disable_symbol("eval");
    // What a function is given beforehand is in no ceiling, and one given to itself doubles with each turn.
    engine.disable_symbol("curry");
    engine.set_strict_variables(true);
    engine
}

fn syntax(error: &ParseError) -> ScriptError {
    ScriptError::Syntax { message: error.err_type().to_string(), line: error.position().line().unwrap_or(0) }
}

fn told(error: &EvalAltResult) -> ScriptError {
    use EvalAltResult::{
        ErrorDataTooLarge, ErrorInFunctionCall, ErrorRuntime, ErrorStackOverflow, ErrorTerminated,
        ErrorTooManyOperations, ErrorTooManyVariables,
    };
    match error {
        ErrorInFunctionCall(_, _, inner, _) => told(inner),
        ErrorTooManyOperations(_) => ScriptError::Ceiling("too many operations".into()),
        ErrorStackOverflow(_) => ScriptError::Ceiling("calls nested too deep".into()),
        ErrorTooManyVariables(_) => ScriptError::Ceiling("too many variables".into()),
        ErrorDataTooLarge(what, _) => ScriptError::Ceiling(format!("{what} too large")),
        ErrorTerminated(token, _) => {
            ScriptError::Ceiling(functions::ceiling_of(token).unwrap_or_else(|| "out of time".into()))
        }
        ErrorRuntime(value, position) => {
            ScriptError::Failed { message: value.to_string(), line: position.line().unwrap_or(0) }
        }
        error => ScriptError::Failed { message: plain(error), line: error.position().line().unwrap_or(0) },
    }
}

/// Without the position, which is told apart.
fn plain(error: &EvalAltResult) -> String {
    let text = error.to_string();
    text.rsplit_once(" (line ").map_or(text.clone(), |(message, _)| message.to_owned())
}
