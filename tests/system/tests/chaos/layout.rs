//! The address of each part of the system, and the command line of each process.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use rolldock_tests::{binary, free_address};

use crate::isolation::Machine;

/// The token of both queues and of the units.
pub(crate) const TOKEN: &str = "secret";
/// The partition of both queues.
pub(crate) const PARTITION: &str = "train";
/// The task of the run's queue.
pub(crate) const REFERENCE_TASK: &str = "ref";
/// The task of the queue server.
pub(crate) const TRAIN_TASK: &str = "train";
/// The column that the reference worker adds. A row is ready for the trainer only with this column.
pub(crate) const REFERENCE_COLUMN: &str = "ref_logprobs";
/// Samples of a group.
pub(crate) const SAMPLES: usize = 4;
/// Groups of a step. The trainer announces a version each time it has trained on this number of groups.
pub(crate) const STEP_GROUPS: usize = 6;
/// The longest response, in tokens.
pub(crate) const RESPONSE_MAX: usize = 96;
/// The capacity of the run's queue and of the queue server, in rows.
pub(crate) const RUN_ROWS: usize = 64;
pub(crate) const QUEUE_ROWS: usize = 128;
/// The term of a lease of the queue server, in milliseconds.
pub(crate) const LEASE_MS: u64 = 3_000;

/// The environment variable that names a file with the offset of a process's wall clock, in seconds. See
/// `orchestrator/process/src/clock.rs`.
const CLOCK: &str = "ROLLDOCK_CLOCK_OFFSET_FILE";

/// The addresses at which the parts listen. Relays in front of the parts have other addresses.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) home: PathBuf,
    pub(crate) engine_a: SocketAddr,
    pub(crate) engine_b: SocketAddr,
    pub(crate) run_queue: SocketAddr,
    pub(crate) policy: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) queue: SocketAddr,
    pub(crate) unit_a: SocketAddr,
    pub(crate) unit_b: SocketAddr,
}

impl Layout {
    /// Chooses free addresses. If unit B has a separate machine, its address is on that machine.
    pub(crate) fn new(home: &Path, machine: Option<&Machine>) -> Self {
        let unit_b = free_address();
        Self {
            home: home.to_owned(),
            engine_a: free_address(),
            engine_b: free_address(),
            run_queue: free_address(),
            policy: free_address(),
            admin: free_address(),
            queue: free_address(),
            unit_a: free_address(),
            unit_b: machine
                .map_or(unit_b, |_| SocketAddr::new(Machine::THERE.parse().unwrap(), unit_b.port())),
        }
    }

    pub(crate) fn disk(&self, name: &str) -> PathBuf {
        self.home.join("disks").join(name)
    }

    /// The directory of the run, on a separate disk.
    pub(crate) fn run_dir(&self) -> PathBuf {
        self.disk("run").join("run")
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.home.join("logs")
    }

    pub(crate) fn clock_file(&self) -> PathBuf {
        self.home.join("clock-offset")
    }

    fn recipe_file(&self) -> PathBuf {
        self.home.join("chaos.toml")
    }

    fn data(&self) -> PathBuf {
        rolldock_tests::workspace_root().canonicalize().unwrap().join("data/arithmetic/train.jsonl")
    }

    /// The number of prompts of an epoch.
    pub(crate) fn prompts(&self) -> usize {
        std::fs::read_to_string(self.data()).unwrap().lines().count()
    }

    /// Writes the recipe of a run whose engines are at these URLs.
    pub(crate) fn write_recipe(&self, engines: &[String]) {
        let recipe = format!(
            r#"[model]
name = "simulated"
tokenizer = "builtin"
[data]
train = "{data}"
[fleet]
endpoints = {engines:?}
max_loads_per_server = 16
probe_interval = 0.25
admin = "{admin}"
[rollout]
workers = 2
max_concurrent_prompts = 3
samples_per_prompt = {SAMPLES}
train_batch_size = {STEP_GROUPS}
gen_batch_size = {STEP_GROUPS}
max_gen_batches = 1000
max_response_length = {RESPONSE_MAX}
on_stop = "carry"
[filter]
metric = "none"
gates = [{{ gate = "length", mean_tokens_max = 60.0 }}]
[policy]
mode = "fully_async"
max_staleness = 4
listen = "{policy}"
[policy.update]
method = "command"
command = ["true"]
[policy.update.timeouts]
pause = 2.0
update = 5.0
reset = 2.0
label = 2.0
resume = 2.0
[queue]
tasks = ["{REFERENCE_TASK}"]
capacity_rows = {RUN_ROWS}
listen = "{queue}"
token = "{TOKEN}"
[timeouts]
connect = 2.0
stall = 5.0
drain = 7.0
silence = 20.0
"#,
            data = self.data().display(),
            admin = self.admin,
            policy = self.policy,
            queue = self.run_queue,
        );
        std::fs::write(self.recipe_file(), recipe).unwrap();
    }

    fn rolldock(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        self.prepare(&mut command, arguments);
        command
    }

    fn prepare(&self, command: &mut Command, arguments: &[&str]) {
        command.args(arguments).env("ROLLDOCK_QUEUE_TOKEN", TOKEN).env(CLOCK, self.clock_file());
        command.env("NO_COLOR", "1").current_dir(&self.home);
    }

    /// The run, or its continuation.
    pub(crate) fn run(&self) -> Command {
        let dir = self.run_dir();
        let mut command = self.rolldock(&["run", "--no-progress"]);
        if dir.join("recipe.toml").exists() {
            // The run does not keep its token.
            command.args(["--set", &format!("queue.token={TOKEN}"), "--resume"]).arg(dir);
        } else {
            command.arg(self.recipe_file()).arg("--out").arg(dir);
        }
        command
    }

    /// A queue server that serves the run's queue instead of the run.
    pub(crate) fn stand_in(&self) -> Command {
        let mut command =
            self.rolldock(&["queue", "serve", "--listen", &self.run_queue.to_string(), "--dir"]);
        command.arg(self.run_dir());
        command
    }

    /// The queue server. If unit B has a separate machine, the server listens on the network of that machine
    /// too.
    pub(crate) fn queue_server(&self) -> Command {
        let is_alone = self.unit_b.ip().is_loopback();
        let at = if is_alone { self.queue.ip() } else { Ipv4Addr::UNSPECIFIED.into() };
        let listen = SocketAddr::new(at, self.queue.port()).to_string();
        let mut command = self.rolldock(&["queue", "serve", "--listen", &listen, "--dir"]);
        command.arg(self.disk("queue"));
        command
    }

    /// A storage unit. It reaches its controller at one URL, and clients reach the unit at the other URL.
    /// `program` begins the command.
    pub(crate) fn unit(
        &self,
        program: impl Fn(&Path) -> Command,
        name: &str,
        listen: SocketAddr,
        controller: &str,
        advertise: &str,
    ) -> Command {
        let listen = listen.to_string();
        let mut command = program(&binary());
        let arguments =
            ["queue", "unit", "--listen", &listen, "--controller", controller, "--advertise", advertise];
        self.prepare(&mut command, &arguments);
        command.arg("--dir").arg(self.disk(name));
        command
    }

    pub(crate) fn engine(&self, at: SocketAddr) -> Command {
        let port = at.port().to_string();
        self.rolldock(&["simengine", "--ports", &port, "--mean-response-length", "40", "--time-scale", "1.0"])
    }

    /// A command that ends by itself, with its output.
    pub(crate) fn tool(&self, arguments: &[&str]) -> std::process::Output {
        self.rolldock(arguments).output().unwrap()
    }
}
