//! Programs that a journey starts. Each is killed by its id when its guard goes, whatever the test made of it.

use std::ffi::OsStr;
use std::fs::File;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use client::Client;
use rustix::process::{Pid, Signal, kill_process};

use super::{PATIENCE, Place, until};

const BINARY: &str = env!("CARGO_BIN_EXE_windlass");

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The program, with nothing of the developer's own settings. Which fault `scripts/mutants` has turned on is none of them.
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

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a command to its end.
pub(crate) async fn windlass<S: AsRef<OsStr>>(args: &[S]) -> Done {
    windlass_with(&[], args).await
}

/// The same with these variables.
pub(crate) async fn windlass_with<S: AsRef<OsStr>>(env: &[(&str, &str)], args: &[S]) -> Done {
    let mut command = tokio::process::Command::from(clean_command());
    command.args(args).envs(env.iter().copied()).kill_on_drop(true);
    ended(command.output()).await
}

/// The same with a stdin on which nothing comes and that does not end, like a terminal at which nobody types.
pub(crate) async fn windlass_at_a_terminal<S: AsRef<OsStr>>(args: &[S]) -> Done {
    let mut command = tokio::process::Command::from(clean_command());
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().expect("the program starts");
    let _open = child.stdin.take();
    ended(child.wait_with_output()).await
}

async fn ended(output: impl Future<Output = std::io::Result<Output>>) -> Done {
    let output = tokio::time::timeout(PATIENCE, output).await;
    let output = output.expect("the command ends").expect("the program runs");
    Done {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("stdout is text"),
        stderr: String::from_utf8(output.stderr).expect("stderr is text"),
    }
}

/// A program that runs until it ends or this is dropped.
pub(crate) struct Program {
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Program {
    pub(crate) fn start(folder: &Path, command: &mut Command) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (stdout, stderr) = (folder.join(format!("stdout-{number}")), folder.join(format!("stderr-{number}")));
        let file = |path| File::create(path).expect("the folder takes files");
        command.stdin(Stdio::null()).stdout(file(&stdout)).stderr(file(&stderr));
        Self { child: command.spawn().expect("the program starts"), stdout, stderr }
    }

    /// Ours, with these arguments.
    pub(crate) fn windlass<'a>(place: &Place, args: impl IntoIterator<Item = &'a str>) -> Self {
        let mut command = clean_command();
        command.args(args).current_dir(place.folder());
        Self::start(place.folder(), &mut command)
    }

    pub(crate) fn id(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.id(), signal).expect("the process is there");
    }

    pub(crate) fn stdout(&self) -> String {
        std::fs::read_to_string(&self.stdout).unwrap_or_default()
    }

    pub(crate) fn stderr(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    pub(crate) fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("the child can be waited for")
    }

    pub(crate) async fn ended(&mut self) -> ExitStatus {
        until("the program ends", async || self.has_ended()).await
    }

    /// SIGTERM, and the exit code.
    pub(crate) async fn terminate(&mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.ended().await.code()
    }

    /// kill -9.
    pub(crate) async fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.ended().await;
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself; a child that was waited for is not signalled again.
        let _gone = self.child.kill();
        let _gone = self.child.wait();
        if std::thread::panicking() {
            eprintln!("stdout: {}\nstderr: {}", self.stdout(), self.stderr());
        }
    }
}

/// The recorder is a grandchild, so that the server's process is our own child and can be killed.
fn strace() -> Command {
    let mut command = Command::new("strace");
    command.args(["-D", "-f", "-q", "--seccomp-bpf"]);
    command
}

/// How to start a server.
pub(crate) struct Serve<'a> {
    place: &'a Place,
    listen: String,
    command: Command,
}

impl<'a> Serve<'a> {
    pub(crate) fn on(place: &'a Place) -> Self {
        Self { place, listen: "127.0.0.1:0".into(), command: clean_command() }.settings()
    }

    /// Another version of the program.
    pub(crate) fn version(place: &'a Place, program: &Path) -> Self {
        Self { place, listen: "127.0.0.1:0".into(), command: clean(program) }.settings()
    }

    /// Through a shell that ignores a signal first: what is ignored stays ignored in the program.
    pub(crate) fn ignoring(place: &'a Place, signal: &str) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("trap '' {signal}; exec \"$0\" \"$@\"")]);
        Self::within(place, shell)
    }

    /// With every call that touches a file or goes out on a connection written down, whole.
    pub(crate) fn recorded(place: &'a Place, trace: &Path) -> Self {
        let mut strace = strace();
        strace.args(["-y", "-xx", "-s", "100000000", "-e"]);
        strace.arg("trace=openat,unlink,write,pwrite64,pwritev,writev,sendto,ftruncate,fallocate,fsync,fdatasync");
        strace.arg("-o").arg(trace);
        Self::within(place, strace)
    }

    /// With system calls that fail as told, say `pwrite64:error=EIO:when=50+90`.
    pub(crate) fn injected(place: &'a Place, trace: &Path, faults: &[&str]) -> Self {
        let mut strace = strace();
        strace.args(["-s", "0", "-e", "trace=pwrite64,fsync,ftruncate", "-o"]).arg(trace);
        Self::with_faults(place, strace, faults)
    }

    /// Killed as it is about to make the `number`th of these system calls in one of its threads.
    pub(crate) fn killed_at(place: &'a Place, call: &str, number: usize) -> Self {
        // Without the filter in the kernel that the others use: with it signals are not delivered.
        let mut strace = Command::new("strace");
        strace.args(["-D", "-f", "-q", "-s", "0", "-e", &format!("trace={call}"), "-o", "/dev/null"]);
        Self::with_faults(place, strace, &[&format!("{call}:signal=KILL:when={number}")])
    }

    fn with_faults(place: &'a Place, mut strace: Command, faults: &[&str]) -> Self {
        for fault in faults {
            strace.args(["-e", &format!("inject={fault}")]);
        }
        Self::within(place, strace)
    }

    /// As an argument of another program.
    fn within(place: &'a Place, mut command: Command) -> Self {
        let program = clean_command();
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.arg(program.get_program());
        Self { place, listen: "127.0.0.1:0".into(), command }.settings()
    }

    fn settings(mut self) -> Self {
        let data = self.place.path("data");
        self.command.arg("serve").arg("--data-dir").arg(data);
        self.command.env("WINDLASS_DATABASE", &self.place.url);
        self.command.current_dir(self.place.folder());
        self
    }

    /// The same port again after a restart, so that workers find it.
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

    /// Through something that stands between the server and its database.
    pub(crate) fn database(mut self, url: &str) -> Self {
        self.command.env("WINDLASS_DATABASE", url);
        self
    }

    pub(crate) async fn start(self) -> Server {
        self.try_start().await.unwrap_or_else(|program| panic!("the server ended: {}", program.stderr()))
    }

    /// The program as it ended, if it ends before it serves.
    pub(crate) async fn try_start(mut self) -> Result<Server, Box<Program>> {
        self.command.args(["--listen", &self.listen]);
        Server::announced(Program::start(self.place.folder(), &mut self.command)).await
    }
}

pub(crate) struct Server {
    pub(crate) program: Program,
    pub(crate) url: String,
}

impl Server {
    pub(crate) async fn start(place: &Place) -> Self {
        Serve::on(place).start().await
    }

    /// A server started with nothing but these arguments.
    pub(crate) async fn with(folder: &Path, args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut command = clean_command();
        command.arg("serve").args(args).envs(env.iter().copied()).current_dir(folder);
        let announced = Self::announced(Program::start(folder, &mut command)).await;
        announced.unwrap_or_else(|program| panic!("the server ended: {}", program.stderr()))
    }

    async fn announced(mut program: Program) -> Result<Self, Box<Program>> {
        let url = until("the server says where it serves", async || {
            let stdout = program.stdout();
            let announced = stdout.split_once("serves on ").and_then(|(_, rest)| rest.split_once(' '));
            match announced {
                Some((url, _)) => Some(Some(url.to_owned())),
                None => program.has_ended().map(|_| None),
            }
        })
        .await;
        match url {
            Some(url) => Ok(Self { program, url }),
            None => Err(Box::new(program)),
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::builder(&self.url).timeout(PATIENCE).build().expect("the address is valid")
    }
}

/// Starts a server that is expected to refuse, and gives how it ended.
pub(crate) async fn refused(folder: &Path, args: &[&str]) -> Done {
    let mut command = clean_command();
    command.arg("serve").args(args).current_dir(folder);
    let mut program = Program::start(folder, &mut command);
    let status = program.ended().await;
    Done { code: status.code(), stdout: program.stdout(), stderr: program.stderr() }
}

/// `windlass work`.
pub(crate) struct Work;

impl Work {
    /// Runs `script` in a shell on each job of the queue. `$DIR` is the place's folder, which is gone when the test is.
    pub(crate) fn start(place: &Place, server: &Server, queue: &str, args: &[&str], script: &str) -> Program {
        Self::version(Path::new(BINARY), place, server, queue, args, script)
    }

    /// The same of another version of the program.
    pub(crate) fn version(
        program: &Path,
        place: &Place,
        server: &Server,
        queue: &str,
        args: &[&str],
        script: &str,
    ) -> Program {
        let mut command = clean(program);
        command.args(["work", "--url", &server.url, "--queue", queue]).args(args);
        command.args(["--", "sh", "-c", &format!("{SHELL}\n{script}")]);
        command.env("DIR", place.folder()).current_dir(place.folder());
        Program::start(place.folder(), &mut command)
    }
}

/// `wait_for NAME` waits for the file NAME, and not past the test's end. `mark NAME` makes one.
const SHELL: &str = r#"
wait_for() { while [ -d "$DIR" ] && [ ! -e "$DIR/$1" ]; do sleep 0.05; done; }
mark() { : > "$DIR/$1"; }
"#;

/// A port for a server that comes back on it. It lies below those that the kernel hands out by itself, and tests that run at
/// the same time leave it alone, so that nobody else gets it while the server is down.
pub(crate) fn free_port() -> u16 {
    let seed = std::process::id().wrapping_mul(37);
    let candidates = (0..).map(|_| {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        10_000 + (seed.wrapping_add(number.wrapping_mul(101)) % 20_000) as u16
    });
    let ours = |port: &u16| {
        // Held until this process ends, as a sign for the other tests: nobody here speaks UDP.
        let Ok(sign) = UdpSocket::bind(("127.0.0.1", *port)) else { return false };
        let free = TcpListener::bind(("127.0.0.1", *port)).is_ok();
        if free {
            std::mem::forget(sign);
        }
        free
    };
    candidates.into_iter().find(ours).expect("some port is free")
}
