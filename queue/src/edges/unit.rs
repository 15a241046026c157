//! A storage unit: a served queue that announces itself to its controller.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::edges::remote::RemoteQueue;
use crate::error::QueueError;
use crate::queue::TransferQueue;
use crate::row::RowHandle;
use crate::units::{BLOBS, ORPHAN_AGE, UnitCard, blobs_spec};

/// The time between two announcements of a unit.
const PERIOD: Duration = Duration::from_millis(500);
/// The maximum number of blobs that one request asks about. The blobs that have waited longest come first.
const ASK_MAX: usize = 1 << 16;

/// The file in a unit's directory that contains the unit's name.
const IDENTITY: &str = "unit-id";

/// The controller of a unit, and the address at which the unit is reached.
#[derive(Debug, Clone)]
pub struct UnitConfig {
    /// The controller.
    pub controller: RemoteQueue,
    /// The address at which the controller and clients reach this unit, as `http://host:port`.
    pub url: String,
    /// The age at which a blob that the controller does not know is removed.
    pub orphan_age: Duration,
}

impl UnitConfig {
    /// Creates a configuration with the default `orphan_age`.
    pub fn new(controller: RemoteQueue, url: impl Into<String>) -> Self {
        Self { controller, url: url.into(), orphan_age: ORPHAN_AGE }
    }
}

/// The unit's name. A unit with a directory draws its name once, and later reads the name from the directory.
/// A unit that keeps its rows in memory gets a new name at each start.
///
/// # Errors
/// Returns [`QueueError::Corrupt`] if the unit has `rows` and its name is lost: under another name the
/// controller would not know the rows, and the unit would remove them.
fn identity(dir: Option<&Path>, rows: usize) -> Result<String, QueueError> {
    let fresh = format!("{:016x}", rand::random::<u64>());
    let Some(dir) = dir else { return Ok(fresh) };
    let path = dir.join(IDENTITY);
    let known = match std::fs::read_to_string(&path) {
        Ok(known) => known.trim().to_owned(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(QueueError::io("read", &path)(error)),
    };
    if !known.is_empty() {
        return Ok(known);
    }
    if rows > 0 {
        let reason = format!(
            "it is missing or empty, expected the name of the storage unit, which has rows={rows}; write the name into \
             it (`rolldock queue inspect` of the controller lists the names of its units)"
        );
        return Err(QueueError::Corrupt { file: path, offset: 0, reason });
    }
    write_identity(&path, &fresh)?;
    Ok(fresh)
}

/// Writes the name so that the file is never found empty, even after the machine has died.
fn write_identity(path: &Path, name: &str) -> Result<(), QueueError> {
    let unfinished = path.with_extension("unfinished");
    let written = File::create(&unfinished).and_then(|mut file| {
        file.write_all(name.as_bytes())?;
        file.sync_all()
    });
    written.map_err(QueueError::io("write", &unfinished))?;
    std::fs::rename(&unfinished, path).map_err(QueueError::io("rename", &unfinished))
}

/// Makes `queue` a storage unit until `end` is cancelled. The caller serves the queue at the config's
/// address. `dir` is the directory of the rows, if the queue keeps them on disk.
///
/// Cancel-safe: a dropped call ends the announcements and the removal of orphans. The controller then probes
/// the unit, and declares it dead if it does not answer.
pub async fn run_unit(
    queue: &TransferQueue,
    dir: Option<&Path>,
    config: UnitConfig,
    end: &CancellationToken,
) -> Result<(), QueueError> {
    if dir.is_none() {
        // A random floor makes it improbable that a handle of an earlier process at this address names a row
        // of this process.
        queue.inner.generation_floor.fetch_max(rand::random::<u32>() >> 1, Ordering::Relaxed);
    }
    let rows = queue.declare(blobs_spec()).await?.stats().rows;
    let card = UnitCard { unit: identity(dir, rows)?, url: config.url.clone(), is_durable: dir.is_some() };
    let mut orphans = Orphans::default();
    let mut is_known = false;
    loop {
        match config.controller.register_unit(&card).await {
            Ok(()) if is_known => {}
            Ok(()) => {
                is_known = true;
                tracing::info!(unit = %card.unit, "the controller has registered this unit");
            }
            Err(error) => {
                is_known = false;
                tracing::warn!(unit = %card.unit, %error, "the controller does not answer");
            }
        }
        if is_known && let Err(error) = orphans.remove(queue, &card.unit, &config).await {
            tracing::warn!(%error, "cannot remove blobs that no table refers to");
        }
        if end.run_until_cancelled(tokio::time::sleep(PERIOD)).await.is_none() {
            return Ok(());
        }
    }
}

/// For each blob, the time since which the blob has waited for the next request. The unit also asks again
/// about blobs that the controller knows, because a controller that dies forgets which blobs it had to clear.
#[derive(Default)]
struct Orphans {
    since: HashMap<String, Instant>,
    next: Option<Instant>,
}

impl Orphans {
    /// Asks about blobs that are old enough, and removes the blobs to which no table refers. Does nothing
    /// until a quarter of `orphan_age` has passed since the last request.
    async fn remove(
        &mut self,
        queue: &TransferQueue,
        unit: &str,
        config: &UnitConfig,
    ) -> Result<(), QueueError> {
        let now = Instant::now();
        if self.next.is_some_and(|next| now < next) {
            return Ok(());
        }
        self.next = Some(now + config.orphan_age / 4);
        let partition = queue.partition(BLOBS)?;
        let groups = partition.groups();
        let old = self.old(&groups, now, config.orphan_age);
        if old.is_empty() {
            return Ok(());
        }
        let unknown: HashSet<String> =
            config.controller.unknown_blobs(unit, old.clone()).await?.into_iter().collect();
        for blob in old {
            match groups.get(&blob).filter(|_| unknown.contains(&blob)) {
                Some(rows) => {
                    tracing::info!(%blob, rows = rows.len(), "a blob that no table refers to is removed");
                    partition.clear(rows).await?;
                    self.since.remove(&blob);
                }
                None => drop(self.since.insert(blob, now)),
            }
        }
        Ok(())
    }

    /// The `groups` that are old enough to ask about.
    fn old(&mut self, groups: &BTreeMap<String, Vec<RowHandle>>, now: Instant, age: Duration) -> Vec<String> {
        self.since.retain(|blob, _| groups.contains_key(blob));
        for blob in groups.keys() {
            if !self.since.contains_key(blob) {
                self.since.insert(blob.clone(), now);
            }
        }
        let is_old = |(_, since): &(&String, &Instant)| now.duration_since(**since) >= age;
        let mut old: Vec<(&String, &Instant)> = self.since.iter().filter(is_old).collect();
        old.sort_unstable_by_key(|(_, since)| **since);
        old.into_iter().take(ASK_MAX).map(|(blob, _)| blob.clone()).collect()
    }
}
