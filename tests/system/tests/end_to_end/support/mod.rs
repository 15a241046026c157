//! Runs the binary under test and simulated servers.

pub(crate) mod answers;
pub(crate) mod metrics;
pub(crate) mod relay;
pub(crate) mod vllm;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
pub(crate) use rolldock_tests::shared;
use rolldock_tests::{binary, workspace_root};

/// The longest time that a test waits for a condition.
const PATIENCE: Duration = Duration::from_secs(240);

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    workspace_root().canonicalize().unwrap()
}

/// The path of a recipe in `recipes/`.
pub(crate) fn recipe(name: &str) -> PathBuf {
    root().join("recipes").join(name)
}

/// The path of a recipe without a trainer, whose rows stay in the run's directory.
pub(crate) fn untaken_recipe() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/end_to_end/support/untaken.toml")
}

/// Waits until `holds` returns true. Panics with the name `what` after `PATIENCE`.
pub(crate) fn wait_for(what: &str, holds: impl FnMut() -> bool) {
    wait_within(PATIENCE, what, holds);
}

/// Waits until `holds` returns true. Panics with the name `what` after the time `patience`.
pub(crate) fn wait_within(patience: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let pause = Duration::from_millis(20);
    for _ in 0..patience.as_millis() / pause.as_millis() {
        if holds() {
            return;
        }
        pause_for(pause);
    }
    panic!("no {what} after {patience:?}");
}

#[expect(clippy::disallowed_methods, reason = "another process is waited for, on its own clock")]
pub(crate) fn pause_for(pause: Duration) {
    std::thread::sleep(pause);
}

/// The exit code and the output of a command that has ended.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A command line of the binary under test, run in the root of the workspace.
pub(crate) struct Rolldock(Command);

impl Rolldock {
    pub(crate) fn new(arguments: &[&str]) -> Self {
        let mut command = Command::new(binary());
        command.current_dir(root()).args(arguments).stdin(Stdio::null());
        Self(command)
    }

    /// A command whose process may open at most `files_max` files, and cannot raise this limit.
    pub(crate) fn with_files(files_max: u32, arguments: &[&str]) -> Self {
        let mut command = Command::new("sh");
        let limited = format!("ulimit -n {files_max} && exec \"$0\" \"$@\"");
        command.current_dir(root()).args(["-c", &limited]).arg(binary()).args(arguments).stdin(Stdio::null());
        Self(command)
    }

    /// A command whose process cannot write files of more than 8 KiB. A longer write ends in its middle with an error.
    pub(crate) fn with_short_files(arguments: &[&str]) -> Self {
        let mut command = Command::new("sh");
        // `sh` counts in blocks of 512 or of 1024 bytes.
        let limited = "trap '' XFSZ; ulimit -f 8 && exec \"$0\" \"$@\"";
        command.current_dir(root()).args(["-c", limited]).arg(binary()).args(arguments).stdin(Stdio::null());
        Self(command)
    }

    /// Runs the command in `directory`.
    pub(crate) fn within(mut self, directory: &Path) -> Self {
        self.0.current_dir(directory);
        self
    }

    pub(crate) fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.0.arg(argument);
        self
    }

    pub(crate) fn args(mut self, arguments: impl IntoIterator<Item: AsRef<OsStr>>) -> Self {
        self.0.args(arguments);
        self
    }

    /// Runs the command with this standard output, to its end.
    pub(crate) fn to(mut self, output: Stdio) {
        let output = self.0.stdout(output).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("panicked"), "{said}");
    }

    /// Adds `--set key=value`.
    pub(crate) fn set(self, setting: &str) -> Self {
        self.arg("--set").arg(setting)
    }

    pub(crate) fn succeeds(self) -> Ended {
        self.fails(0)
    }

    /// Runs the command, and checks that it ends with this exit code and without a panic.
    pub(crate) fn fails(mut self, code: i32) -> Ended {
        let output = self.0.output().unwrap();
        let ended = Ended {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        };
        assert_eq!(ended.code, Some(code), "{:?}\n{}\n{}", self.0, ended.stdout, ended.stderr);
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
        assert!(!ended.stderr.contains("have not ended in"), "{}", ended.stderr);
        ended
    }

    /// Gives the command a standard output on which every write fails, as on a full disk.
    pub(crate) fn without_room_for_output(mut self) -> Self {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        self.0.stdout(full);
        self
    }

    pub(crate) fn start(mut self) -> Running {
        let mut child = self.0.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = gather(child.stdout.take().unwrap());
        let stderr = gather(child.stderr.take().unwrap());
        Running { child, stdout, stderr }
    }

    /// The command with a file system of 256 KiB mounted at `disk`, in which the shell has run the line `before`. The
    /// process sees the mount, and others find it in `/proc/ID/root`.
    fn with_small_disk(self, disk: &Path, before: &str) -> Self {
        std::fs::create_dir_all(disk).unwrap();
        let mounted = format!("mount -t tmpfs -o size=256k none \"$0\" || exit 77; {before}\nexec \"$@\"");
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &mounted]).arg(disk);
        command.arg(self.0.get_program()).args(self.0.get_args()).current_dir(root());
        command.stdin(Stdio::null());
        Self(command)
    }

    /// Starts the command on a [small disk](Self::with_small_disk). Returns `None` if this user may not mount one.
    pub(crate) fn start_on_small_disk(self, disk: &Path, before: &str) -> Option<Running> {
        Self::new(&["--version"]).on_small_disk(disk)?;
        Some(self.with_small_disk(disk, before).start())
    }

    /// Runs the command on a [small disk](Self::with_small_disk). Returns `None` if this user may not mount one.
    pub(crate) fn on_small_disk(self, disk: &Path) -> Option<Ended> {
        let output = self.with_small_disk(disk, "").0.output().ok()?;
        let unshared = !String::from_utf8_lossy(&output.stderr).starts_with("unshare");
        (unshared && output.status.code() != Some(77)).then(|| Ended {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }
}

/// Settings for a run that takes about a second: small batches and short answers.
pub(crate) const SMALL: [&str; 9] = [
    "fleet.simulated.time_scale=0.002",
    "fleet.simulated.mean_response_length=40",
    "rollout.train_batch_size=4",
    "rollout.gen_batch_size=8",
    "rollout.samples_per_prompt=4",
    "rollout.max_response_length=256",
    "queue.consumer.take_groups=2",
    "queue.capacity_rows=32",
    "validation.every_steps=2",
];

/// A run of the quickstart recipe with the settings [`SMALL`], in the directory `out`.
pub(crate) fn small_run(out: &Path, steps: &str) -> Rolldock {
    let run = Rolldock::new(&["run", "--steps", steps, "--out"]).arg(out).arg(recipe("quickstart.toml"));
    SMALL.iter().fold(run, |run, set| run.set(set))
}

type Gathered = (Arc<Mutex<String>>, std::thread::JoinHandle<()>);

fn gather(pipe: impl Read + Send + 'static) -> Gathered {
    let text = Arc::new(Mutex::new(String::new()));
    let into = Arc::clone(&text);
    let reading = std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            let mut text = into.lock();
            text.push_str(&line);
            text.push('\n');
        }
    });
    (text, reading)
}

/// A running command, which is killed when this value is dropped.
pub(crate) struct Running {
    child: Child,
    stdout: Gathered,
    stderr: Gathered,
}

impl Running {
    pub(crate) fn stdout_so_far(&self) -> String {
        self.stdout.0.lock().clone()
    }

    pub(crate) fn stderr_so_far(&self) -> String {
        self.stderr.0.lock().clone()
    }

    /// The id of the process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line with `words` on standard output, and returns the URL after them.
    pub(crate) fn url_after(&self, words: &str) -> String {
        wait_for(words, || self.stdout_so_far().contains(words));
        let text = self.stdout_so_far();
        let (_, rest) = text.split_once(words).unwrap();
        rest.split([',', '\n']).next().unwrap().to_owned()
    }

    /// Sends SIGINT, as Ctrl-C does.
    pub(crate) fn interrupt(&self) {
        self.signal("INT");
    }

    /// Sends SIGTERM, as a supervisor does.
    pub(crate) fn terminate(&self) {
        self.signal("TERM");
    }

    /// Sends the signal with this name, such as "HUP".
    pub(crate) fn signal(&self, name: &str) {
        let (signal, process) = (format!("-{name}"), self.child.id().to_string());
        assert!(Command::new("kill").args([signal, process]).status().unwrap().success());
    }

    /// Sends SIGKILL, as the out-of-memory killer does.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub(crate) fn wait(mut self) -> Ended {
        let code = self.child.wait().unwrap().code();
        let text = |(text, reading): &mut Gathered| {
            let reading = std::mem::replace(reading, std::thread::spawn(|| {}));
            reading.join().unwrap();
            text.lock().clone()
        };
        Ended { code, stdout: text(&mut self.stdout), stderr: text(&mut self.stderr) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process of `rolldock simengine`.
pub(crate) struct Simengine {
    pub(crate) url: String,
    process: Running,
}

impl Simengine {
    /// Starts a server on a free port.
    pub(crate) fn start(flags: &[&str]) -> Self {
        Self::at(0, flags)
    }

    /// Starts a server on a port.
    pub(crate) fn at(port: u16, flags: &[&str]) -> Self {
        let process = Rolldock::new(&["simengine", "--ports", &port.to_string()]);
        let process = flags.iter().fold(process, Rolldock::arg).start();
        wait_for("simulated server", || process.stdout_so_far().contains(" serves "));
        let line = process.stdout_so_far();
        let url = line.split(' ').next().unwrap().to_owned();
        Self { url, process }
    }

    /// Stops the process, so that the server accepts connections and answers nothing.
    pub(crate) fn stop(&self) {
        self.process.signal("STOP");
    }
}
