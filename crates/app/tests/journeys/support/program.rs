//! Programs that a test starts. Dropping the guard kills the program by its process id.

use std::ffi::OsStr;
use std::fs::File;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use client::Client;
use rustix::process::{Pid, Signal, kill_process};

use super::{Fixture, TIMEOUT, before_timeout, eventually};

const BINARY: &str = env!("CARGO_BIN_EXE_windlass");

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The binary without the developer's own settings. `WINDLASS_MUTANT`, which `scripts/mutants` sets, is kept.
fn clean_command() -> Command {
    clean(BINARY)
}

fn clean(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    let is_setting = |name: &str| name.starts_with("WINDLASS_") && name != "WINDLASS_MUTANT";
    let ours = |name: &OsStr| name.to_str().is_some_and(is_setting);
    for (name, _) in std::env::vars_os().filter(|(name, _)| ours(name)) {
        command.env_remove(name);
    }
    command.env("RUST_BACKTRACE", "0").stdin(Stdio::null());
    command
}

/// The exit code and the output of a command.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a command until it exits.
pub(crate) async fn windlass<S: AsRef<OsStr>>(args: &[S]) -> CommandOutput {
    windlass_with(&[], args).await
}

/// Same as [`windlass`] with additional environment variables.
pub(crate) async fn windlass_with<S: AsRef<OsStr>>(env: &[(&str, &str)], args: &[S]) -> CommandOutput {
    let mut command = tokio::process::Command::from(clean_command());
    command.args(args).envs(env.iter().copied()).kill_on_drop(true);
    finish(command.output()).await
}

/// Same as [`windlass`] with an open stdin that delivers nothing, like an idle terminal.
pub(crate) async fn windlass_with_open_stdin<S: AsRef<OsStr>>(args: &[S]) -> CommandOutput {
    let mut command = tokio::process::Command::from(clean_command());
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().expect("the program starts");
    let _open = child.stdin.take();
    finish(child.wait_with_output()).await
}

async fn finish(output: impl Future<Output = std::io::Result<Output>>) -> CommandOutput {
    let output = before_timeout("the command exits", output).await.expect("the program runs");
    CommandOutput {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("stdout is text"),
        stderr: String::from_utf8(output.stderr).expect("stderr is text"),
    }
}

/// A running program. Dropping it kills the program.
pub(crate) struct Program {
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Program {
    pub(crate) fn start(folder: &Path, command: &mut Command) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (stdout, stderr) = (folder.join(format!("stdout-{number}")), folder.join(format!("stderr-{number}")));
        let file = |path| File::create(path).expect("creates the file");
        command.stdin(Stdio::null()).stdout(file(&stdout)).stderr(file(&stderr));
        Self { child: command.spawn().expect("the program starts"), stdout, stderr }
    }

    /// Starts `windlass` with these arguments.
    pub(crate) fn windlass<'a>(fixture: &Fixture, args: impl IntoIterator<Item = &'a str>) -> Self {
        Self::windlass_with(fixture, args, &[])
    }

    /// Same as [`Program::windlass`] with additional environment variables.
    pub(crate) fn windlass_with<'a>(
        fixture: &Fixture,
        args: impl IntoIterator<Item = &'a str>,
        env: &[(&str, &str)],
    ) -> Self {
        let mut command = clean_command();
        command.args(args).envs(env.iter().copied()).current_dir(fixture.folder());
        Self::start(fixture.folder(), &mut command)
    }

    pub(crate) fn id(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.id(), signal).expect("the process exists");
    }

    pub(crate) fn stdout(&self) -> String {
        std::fs::read_to_string(&self.stdout).unwrap_or_default()
    }

    pub(crate) fn stderr(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    pub(crate) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("the child can be waited for")
    }

    /// Waits until the program exits.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        eventually("the program exits", async || self.exit_status()).await
    }

    /// Sends SIGTERM, waits, and returns the exit code.
    pub(crate) async fn terminate(&mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.ended().await.code()
    }

    /// Kills the program with SIGKILL.
    pub(crate) async fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.ended().await;
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The program may have exited. A child that was waited for is not signaled again.
        let _exited = self.child.kill();
        let _exited = self.child.wait();
        if std::thread::panicking() {
            eprintln!("stdout: {}\nstderr: {}", self.stdout(), self.stderr());
        }
    }
}

/// `-D` makes strace a grandchild, so that the server is our own child and can be killed.
fn strace() -> Command {
    let mut command = Command::new("strace");
    command.args(["-D", "-f", "-q", "--seccomp-bpf"]);
    command
}

/// Builds and starts a server.
pub(crate) struct Serve<'a> {
    fixture: &'a Fixture,
    listen: String,
    command: Command,
}

impl<'a> Serve<'a> {
    pub(crate) fn on(fixture: &'a Fixture) -> Self {
        Self { fixture, listen: "127.0.0.1:0".into(), command: clean_command() }.settings()
    }

    /// Uses another build of the program.
    pub(crate) fn version(fixture: &'a Fixture, program: &Path) -> Self {
        Self { fixture, listen: "127.0.0.1:0".into(), command: clean(program) }.settings()
    }

    /// Starts the server through a shell that ignores a signal. The program inherits the ignored signal.
    pub(crate) fn ignoring(fixture: &'a Fixture, signal: &str) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("trap '' {signal}; exec \"$0\" \"$@\"")]);
        Self::within(fixture, shell)
    }

    /// Records every system call that writes to a file or a connection, with its complete data.
    pub(crate) fn recorded(fixture: &'a Fixture, trace: &Path) -> Self {
        let mut strace = strace();
        strace.args(["-y", "-xx", "-s", "100000000", "-e"]);
        strace.arg("trace=openat,unlink,write,pwrite64,pwritev,writev,sendto,ftruncate,fallocate,fsync,fdatasync");
        strace.arg("-o").arg(trace);
        Self::within(fixture, strace)
    }

    /// Injects faults into system calls, in strace's syntax, for example `pwrite64:error=EIO:when=50+90`.
    pub(crate) fn injected(fixture: &'a Fixture, trace: &Path, faults: &[&str]) -> Self {
        let mut strace = strace();
        strace.args(["-s", "0", "-e", "trace=pwrite64,fsync,ftruncate", "-o"]).arg(trace);
        Self::with_faults(fixture, strace, faults)
    }

    /// Kills the server when one of its threads is about to make this system call for the `number`th time.
    pub(crate) fn killed_at(fixture: &'a Fixture, call: &str, number: usize) -> Self {
        // Without --seccomp-bpf, which the other modes use: with it strace delivers no signals.
        let mut strace = Command::new("strace");
        strace.args(["-D", "-f", "-q", "-s", "0", "-e", &format!("trace={call}"), "-o", "/dev/null"]);
        Self::with_faults(fixture, strace, &[&format!("{call}:signal=KILL:when={number}")])
    }

    fn with_faults(fixture: &'a Fixture, mut strace: Command, faults: &[&str]) -> Self {
        for fault in faults {
            strace.args(["-e", &format!("inject={fault}")]);
        }
        Self::within(fixture, strace)
    }

    /// Passes the server's command line to another program.
    fn within(fixture: &'a Fixture, mut command: Command) -> Self {
        let program = clean_command();
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.arg(program.get_program());
        Self { fixture, listen: "127.0.0.1:0".into(), command }.settings()
    }

    fn settings(mut self) -> Self {
        let data = self.fixture.path("data");
        self.command.arg("serve").arg("--data-dir").arg(data);
        self.command.env("WINDLASS_DATABASE", &self.fixture.url);
        self.command.current_dir(self.fixture.folder());
        self
    }

    /// Sets a fixed port, so that workers find the server after a restart.
    pub(crate) fn port(mut self, port: u16) -> Self {
        self.listen = format!("127.0.0.1:{port}");
        self
    }

    pub(crate) fn listen(mut self, address: &str) -> Self {
        self.listen = address.to_owned();
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Overrides the database URL, for a proxy between the server and its database.
    pub(crate) fn database(mut self, url: &str) -> Self {
        self.command.env("WINDLASS_DATABASE", url);
        self
    }

    pub(crate) async fn start(self) -> Server {
        self.try_start().await.unwrap_or_else(|program| panic!("the server ended: {}", program.stderr()))
    }

    /// Returns the program if it exits before it serves.
    pub(crate) async fn try_start(mut self) -> Result<Server, Box<Program>> {
        self.command.args(["--listen", &self.listen]);
        Server::announced(Program::start(self.fixture.folder(), &mut self.command)).await
    }
}

pub(crate) struct Server {
    pub(crate) program: Program,
    pub(crate) url: String,
}

impl Server {
    pub(crate) async fn start(fixture: &Fixture) -> Self {
        Serve::on(fixture).start().await
    }

    /// Starts a server with only these arguments.
    pub(crate) async fn with(folder: &Path, args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut command = clean_command();
        command.arg("serve").args(args).envs(env.iter().copied()).current_dir(folder);
        let announced = Self::announced(Program::start(folder, &mut command)).await;
        announced.unwrap_or_else(|program| panic!("the server ended: {}", program.stderr()))
    }

    async fn announced(mut program: Program) -> Result<Self, Box<Program>> {
        let url = eventually("the server prints its address", async || {
            let stdout = program.stdout();
            let announced = stdout.split_once("serves on ").and_then(|(_, rest)| rest.split_once(' '));
            match announced {
                Some((url, _)) => Some(Some(url.to_owned())),
                None => program.exit_status().map(|_| None),
            }
        })
        .await;
        match url {
            Some(url) => Ok(Self { program, url }),
            None => Err(Box::new(program)),
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::builder(&self.url).timeout(TIMEOUT).build().expect("the address is valid")
    }
}

/// Starts a server that must refuse to start, and returns its output.
pub(crate) async fn failed_start(folder: &Path, args: &[&str]) -> CommandOutput {
    let mut command = clean_command();
    command.arg("serve").args(args).current_dir(folder);
    let mut program = Program::start(folder, &mut command);
    let status = program.ended().await;
    CommandOutput { code: status.code(), stdout: program.stdout(), stderr: program.stderr() }
}

/// Builds and starts `windlass work`.
pub(crate) struct Work;

impl Work {
    /// Runs `script` in a shell for each job of the queue. `$DIR` is the folder of the fixture, which is removed at the
    /// end of the test.
    pub(crate) fn start(fixture: &Fixture, server: &Server, queue: &str, args: &[&str], script: &str) -> Program {
        Self::version(Path::new(BINARY), fixture, server, queue, args, script)
    }

    /// Same as [`Work::start`] with another build of the program.
    pub(crate) fn version(
        program: &Path,
        fixture: &Fixture,
        server: &Server,
        queue: &str,
        args: &[&str],
        script: &str,
    ) -> Program {
        let mut command = clean(program);
        command.args(["work", "--url", &server.url, "--queue", queue]).args(args);
        command.args(["--", "sh", "-c", &format!("{SHELL}\n{script}")]);
        command.env("DIR", fixture.folder()).current_dir(fixture.folder());
        Program::start(fixture.folder(), &mut command)
    }
}

/// `wait_for NAME` waits until the file NAME or the end of the test. `mark NAME` creates the file.
const SHELL: &str = r#"
wait_for() { while [ -d "$DIR" ] && [ ! -e "$DIR/$1" ]; do sleep 0.05; done; }
mark() { : > "$DIR/$1"; }
"#;

/// Reserves a port for a server that restarts on it. The port lies below the kernel's ephemeral range, and other tests
/// that run at the same time do not use it, so that no other program gets it while the server is down.
pub(crate) fn free_port() -> u16 {
    let seed = std::process::id().wrapping_mul(37);
    let candidates = (0..).map(|_| {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        10_000 + (seed.wrapping_add(number.wrapping_mul(101)) % 20_000) as u16
    });
    let reserve = |port: &u16| {
        // A UDP socket on the same port marks it as reserved for other test processes until this process ends.
        let Ok(reservation) = UdpSocket::bind(("127.0.0.1", *port)) else { return false };
        let is_free = TcpListener::bind(("127.0.0.1", *port)).is_ok();
        if is_free {
            std::mem::forget(reservation);
        }
        is_free
    };
    candidates.into_iter().find(reserve).expect("some port is free")
}
