//! Small disks that can be full, and a separate network for one storage unit.
//!
//! The disks and the network need namespaces. The test runs itself again as a child in new namespaces of
//! users, mounts, networks and processes, which needs no privilege on most systems. The child is the root
//! user of its namespaces. When the child ends for any reason, its mounts, devices and processes end with it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::until;

/// The environment variable that tells the child its directory.
const HOME: &str = "ROLLDOCK_CHAOS_HOME";
const NAMESPACES: [&str; 8] =
    ["--user", "--map-root-user", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"];
/// Does everything that the child needs namespaces for. `$0` is a directory.
const PROBE: &str = "ip link set lo up && ip link add rd0 type veth peer name rd1 && \
                     mount -t tmpfs -o size=1m none \"$0\" && mount -o remount,size=2m \"$0\" && \
                     unshare --net nsenter --target $$ --net true";

/// Where the test runs.
pub(crate) enum Place {
    /// The test runs in the child, with this directory.
    Inside(PathBuf),
    /// The test runs in the parent, and the child has ended. The value says whether the child succeeded.
    Ended(bool),
    /// The test runs without namespaces, for this reason.
    Outside(String),
}

fn unshared(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(NAMESPACES).args(["sh", "-c", script]);
    command
}

/// Runs the test `name` of this program in namespaces, if the system allows it.
pub(crate) fn enter(name: &str) -> Place {
    if let Some(home) = std::env::var_os(HOME) {
        return Place::Inside(home.into());
    }
    let home = TempDir::new().unwrap();
    let probed = match unshared(PROBE).arg(home.path()).output() {
        Ok(probed) => probed,
        Err(error) => return Place::Outside(format!("unshare: {error}")),
    };
    if !probed.status.success() {
        return Place::Outside(String::from_utf8_lossy(&probed.stderr).trim().to_owned());
    }
    let script = "ip link set lo up && exec \"$0\" --exact \"$1\" --nocapture";
    let mut child = unshared(script);
    child.arg(std::env::current_exe().unwrap()).arg(name).env(HOME, home.path());
    let succeeded = child.status().unwrap().success();
    if !succeeded {
        eprintln!("the logs are in {}", home.keep().display());
    }
    Place::Ended(succeeded)
}

/// Runs a command of the system. The error is what the command printed.
fn tried(words: &[&str]) -> Result<(), String> {
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{words:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Runs a command of the system, which must succeed.
fn call(words: &[&str]) {
    tried(words).unwrap_or_else(|error| panic!("{error}"));
}

/// A file system in memory, whose size can be changed.
pub(crate) struct Disk(PathBuf);

impl Disk {
    /// The size of a disk that is not full. Only written data uses memory.
    const SIZE: &str = "size=512m";
    /// The space that a full disk has left, in bytes.
    const LEFT: u64 = 16 << 10;
    /// The maximum number of attempts of [`fill`](Self::fill). The system refuses a size that is below the
    /// space in use, and processes may write to the disk after this space was read and before the size is
    /// changed.
    const TRIES: usize = 100;

    pub(crate) fn mount(at: &Path) -> Self {
        std::fs::create_dir_all(at).unwrap();
        call(&["mount", "-t", "tmpfs", "-o", Self::SIZE, "none", &at.to_string_lossy()]);
        Self(at.to_owned())
    }

    /// Leaves almost no space on the disk.
    pub(crate) fn fill(&self) {
        let mut refusal = String::new();
        for _ in 0..Self::TRIES {
            let disk = rustix::fs::statvfs(&self.0).unwrap();
            let used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize;
            match self.resize(&format!("size={}", used + Self::LEFT)) {
                Ok(()) => return,
                Err(error) => refusal = error,
            }
        }
        panic!("the disk could not be filled in {} tries: {refusal}", Self::TRIES);
    }

    /// Gives the disk its full size again.
    pub(crate) fn clear(&self) {
        self.resize(Self::SIZE).unwrap();
    }

    fn resize(&self, size: &str) -> Result<(), String> {
        tried(&["mount", "-o", &format!("remount,{size}"), &self.0.to_string_lossy()])
    }
}

/// A machine with a separate network: a network namespace. A pair of virtual devices connects this namespace
/// with the namespace of the test.
pub(crate) struct Machine {
    /// The process that keeps the namespace.
    holder: Child,
}

impl Machine {
    /// The address of this test for the machine.
    pub(crate) const HERE: &str = "10.77.0.1";
    /// The address of the machine for this test.
    pub(crate) const THERE: &str = "10.77.0.2";

    pub(crate) async fn start() -> Self {
        let mut holding = Command::new("unshare");
        holding.args(["--net", "sleep", "infinity"]).stdin(Stdio::null());
        let machine = Self { holder: holding.spawn().unwrap() };
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        let namespace = format!("/proc/{}/ns/net", machine.holder.id());
        until("a network namespace", Duration::from_secs(10), async || {
            std::fs::read_link(&namespace).is_ok_and(|other| other != own)
        })
        .await;
        let pid = machine.holder.id().to_string();
        call(&["ip", "link", "add", "rd0", "type", "veth", "peer", "name", "rd1", "netns", &pid]);
        call(&["ip", "address", "add", &format!("{}/24", Self::HERE), "dev", "rd0"]);
        call(&["ip", "link", "set", "rd0", "up"]);
        machine.call(&["ip", "address", "add", &format!("{}/24", Self::THERE), "dev", "rd1"]);
        machine.plug(true);
        machine
    }

    /// A command that runs on the machine.
    pub(crate) fn command(&self) -> impl Fn(&Path) -> Command + Send + use<> {
        let pid = self.holder.id().to_string();
        move |program: &Path| {
            let mut command = Command::new("nsenter");
            command.args(["--target", &pid, "--net"]).arg(program);
            command
        }
    }

    fn call(&self, words: &[&str]) {
        let pid = self.holder.id().to_string();
        call(&[&["nsenter", "--target", &pid, "--net"][..], words].concat());
    }

    /// Connects the network of the machine, or disconnects it. While it is disconnected, packets in both
    /// directions are lost, and no connection is closed.
    pub(crate) fn plug(&self, is_in: bool) {
        self.call(&["ip", "link", "set", "rd1", if is_in { "up" } else { "down" }]);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The holder may have been killed already.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
