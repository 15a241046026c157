//! A sandbox for programs that need the network, such as agents: namespaces made by the command `bwrap`.
//!
//! A program sees the system's directories, a few files of `/etc` and the paths that it is shown, all
//! read-only. It may write to `/tmp`, its home directory, and to `/dev/shm`. Both are in memory and end with
//! the program. It has namespaces of its own for mounts, processes, IPC and the host name, and no
//! capabilities. Its environment has only the variables that it is given, `HOME`, `TMPDIR` and a few
//! variables of this process.
//!
//! # Deliberately absent
//! The network is that of the host, because the program calls servers whose addresses the sandbox does not
//! know. A program has no user of its own: a program of `root` stays `root` without capabilities, so that it
//! can read the paths that it is shown. There is no weaker level: where `bwrap` does not work, the sandbox
//! cannot be made.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::RewardError;
use crate::external::sandbox::{Interpreter, View, Words};

/// The name of the sandbox in errors.
const SANDBOX: &str = "sandbox";
/// The only directory that a program can write to, apart from the shared memory.
const HOME: &str = "/tmp";
/// Files and directories by which programs find hosts, users and certificates.
const NETWORK_FILES: [&str; 14] = [
    "/etc/ca-certificates",
    "/etc/crypto-policies",
    "/etc/gai.conf",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/ld.so.conf",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/pki",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl",
];
/// Variables of this process that a program has too.
const KEPT: [&str; 6] = ["PATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR"];

/// What a program in a sandbox needs.
#[derive(Debug, Clone, Default)]
pub struct ProgramView {
    /// Files and directories that it can read. A path that does not exist is an error.
    pub readable: Vec<PathBuf>,
    /// A Python interpreter that it can run.
    pub interpreter: Option<String>,
    /// The working directory, which it can read; by default a writable one in memory.
    pub directory: Option<PathBuf>,
    /// Maximum size of `/tmp`, and of `/dev/shm`, in bytes.
    pub scratch_bytes: u64,
}

/// A sandbox that programs run in. Clones are cheap.
#[derive(Debug, Clone)]
pub struct ProgramSandbox {
    words: Arc<[OsString]>,
    executable: Option<Arc<str>>,
}

impl ProgramSandbox {
    /// A sandbox with this view. Only the run of a program shows whether this host can make the sandbox.
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`RewardError::Unloadable`]: a path does not exist, or the interpreter cannot be run.
    pub async fn new(view: ProgramView) -> Result<Self, RewardError> {
        let mut seen = View::of_system();
        seen.show_existing(&NETWORK_FILES);
        let interpreter = match &view.interpreter {
            Some(name) => Some(Interpreter::find(name).await?),
            None => None,
        };
        interpreter.iter().flat_map(|interpreter| &interpreter.parts).for_each(|path| seen.show(path));
        for path in view.readable.iter().chain(&view.directory) {
            seen.show(whole(path)?);
        }
        let mut words = Words::of(&[
            "bwrap --unshare-pid --unshare-ipc --unshare-uts --unshare-cgroup-try --die-with-parent",
        ]);
        match rustix::process::geteuid().is_root() {
            true => words.split("--cap-drop ALL"),
            false => words.split("--unshare-user"),
        }
        words.0.extend(seen.bubblewrap(&[HOME], view.scratch_bytes));
        words.push("--chdir");
        match &view.directory {
            Some(directory) => words.push(whole(directory)?),
            None => words.push(HOME),
        }
        words.push("--");
        let executable = interpreter.map(|interpreter| interpreter.executable.to_string_lossy().into());
        Ok(Self { words: words.0.into(), executable })
    }

    /// The path of the interpreter in the sandbox. The interpreter may have been found through a script that
    /// is not visible in the sandbox.
    pub fn executable(&self) -> Option<&str> {
        self.executable.as_deref()
    }

    /// The words of the command line that come before the program. `memory_bytes` limits the address space of
    /// each of its processes.
    pub(super) fn words(&self, memory_bytes: Option<u64>) -> Vec<OsString> {
        let mut words = self.words.to_vec();
        words.extend(
            memory_bytes
                .map(|bytes| ["prlimit".into(), format!("--as={bytes}").into()])
                .into_iter()
                .flatten(),
        );
        words
    }

    /// The whole environment of a program that is given `env`.
    pub(super) fn environment(env: &BTreeMap<String, String>) -> BTreeMap<OsString, OsString> {
        let kept = KEPT.iter().filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?)));
        let own = ["HOME", "TMPDIR"].map(|name| (name.into(), HOME.into()));
        kept.chain(own).chain(env.iter().map(|(name, value)| (name.into(), value.into()))).collect()
    }
}

/// The absolute form of a path that exists.
fn whole(path: &Path) -> Result<PathBuf, RewardError> {
    let missing = |error: std::io::Error| RewardError::Unloadable {
        what: SANDBOX.into(),
        reason: format!("expected a file or a directory at {}: {error}", path.display()),
    };
    std::fs::metadata(path).map_err(missing)?;
    std::path::absolute(path).map_err(missing)
}
