//! A server in a process of its own, and the kernel's statistics about that process.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::Context;

/// A process of the binary `rolldock`, which is killed when this value is dropped.
pub(crate) struct Process(Child);

impl Process {
    /// Starts a server with these arguments. Returns the first line of its standard output, which has the server's
    /// address. The line is empty if the server ended.
    pub(crate) fn start(arguments: &[&OsStr]) -> anyhow::Result<(Self, String)> {
        let binary = std::env::current_exe()?.with_file_name("rolldock");
        anyhow::ensure!(
            binary.exists(),
            "{} does not exist; build it: cargo build --profile dist --bin rolldock",
            binary.display()
        );
        let mut command = Command::new(binary);
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut process = Self(command.spawn()?);
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().context("the server has no standard output")?)
            .read_line(&mut line)?;
        Ok((process, line))
    }

    /// An entry of the kernel's memory statistics, such as `VmRSS`, in bytes.
    pub(crate) fn memory(&self, what: &str) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':'));
        let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
        Ok(kibibytes
            .with_context(|| format!("expected {what} in /proc/PID/status"))?
            .trim()
            .parse::<f64>()?
            * 1024.0)
    }

    /// Number of open sockets of the server.
    pub(crate) fn sockets(&self) -> anyhow::Result<usize> {
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.0.id()))?;
        let is_socket = |path: std::path::PathBuf| {
            std::fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
        };
        Ok(files.flatten().filter(|file| is_socket(file.path())).count())
    }

    /// CPU time of all threads of the server so far, in seconds.
    pub(crate) fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
        // The name may have spaces. After the name, the 12th and 13th fields are the ticks in user mode and
        // in the kernel.
        let (_, fields) =
            stat.rsplit_once(") ").context("expected a name in parentheses in /proc/PID/stat")?;
        let ticks = |place: usize| fields.split(' ').nth(place).and_then(|ticks| ticks.parse::<f64>().ok());
        let ticks = ticks(11)
            .zip(ticks(12))
            .map(|(user, kernel)| user + kernel)
            .context("expected the times of the process in /proc/PID/stat")?;
        Ok(ticks / rustix::param::clock_ticks_per_second() as f64)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A destructor cannot report an error. `wait` reaps the process, so that it does not stay as a zombie.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
