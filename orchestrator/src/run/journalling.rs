//! The run's ledger on disk. It is opened before the first dispatch and written before every put. A resumed
//! run continues from it.

use std::path::Path;

use anyhow::Context;
use parking_lot::Mutex;
use rolldock_dispatch::DispatchId;
use rolldock_queue::{Durability, Partition, holds_queue};
use tokio_util::sync::CancellationToken;

use super::convert::seconds;
use super::directory::RECIPE_FILE;
use crate::data::{DataError, Prompt};
use crate::process::{QUEUE_FOLDER, unix_seconds};
use crate::recipe::Recipe;
use crate::rollout::{PromptFeed, Restored};
use crate::scope::Scope;
use crate::scope::blocking;
use rolldock_ledger::{
    FORMAT, KeptGroup, LedgerConfig, LedgerWriter, LifeRecord, Opened, QueueRecord, QueuedPrompt, Record,
    Resumption, RunRecord, TokensPlace, ledger_file, read_carried,
};

/// The maximum number of ids in one record.
const SETTLED_MAX: usize = 4096;

/// The prompt that `waiting` names. The run in `out` has to issue it again.
fn waiting_prompt(out: &Path, waiting: &QueuedPrompt, prompts: &PromptFeed) -> anyhow::Result<Prompt> {
    let QueuedPrompt { row, prompt_uid, .. } = waiting;
    match prompts.fetch(*row, waiting.visit) {
        Ok(Some(prompt)) if prompt.uid == *prompt_uid => Ok(prompt),
        Err(DataError::Overlong { uid, tokens, tokens_max, .. }) if uid == *prompt_uid => {
            // The run's directory has the recipe with which the prompt was drawn until the resume succeeds.
            let drawn_with = Recipe::load_begun(&out.join(RECIPE_FILE))?;
            let limit = drawn_with.data.max_prompt_length;
            anyhow::bail!(
                "the run has to issue prompt_uid={prompt_uid} row={row} again, which has tokens={tokens}; \
                 data.max_prompt_length has changed from {limit} to {tokens_max}: resume with \
                 --set data.max_prompt_length={limit}, or name another --out to begin a new run"
            )
        }
        Ok(_) | Err(DataError::Overlong { .. } | DataError::Position { .. }) => anyhow::bail!(
            "the data has changed: row {row} is not prompt_uid={prompt_uid} any more, which the run has to issue \
             again; put the data of the run back, or name another --out to begin a new run"
        ),
        Err(error) => Err(error.into()),
    }
}

/// The tokens that the run in `out` has kept at `place`.
fn kept_tokens(out: &Path, place: TokensPlace) -> anyhow::Result<KeptGroup> {
    read_carried(out, place).with_context(|| {
        let step = place.file;
        format!(
            "the run goes on with the tokens of groups that were cut off or held in step {step}, and cannot read them; \
             put tokens-{step}.bin back from a copy of the directory, or name another --out to begin a new run"
        )
    })
}

/// The ledger of a run. It is written before the queue, and a restart relies on this order.
pub(super) struct RunJournal {
    pub(super) writer: LedgerWriter,
    /// The run's id with the number of this process. The request ids of this process start with it.
    pub(super) run_id: String,
    partition: Partition,
    /// Dispatches whose groups are in the queue but not settled, in the order of the queue's journal.
    unsettled: Mutex<Vec<DispatchId>>,
}

impl RunJournal {
    /// Opens the ledger of the run in `out`, before anything else of the run is written. The ledger marks the
    /// directory as the directory of a run. While the ledger is open, no other process can work on the run.
    ///
    /// A queue without a ledger is refused. The ledger is created before the queue, so the ledger must have
    /// been lost.
    pub(super) async fn open(out: &Path, recipe: &Recipe) -> anyhow::Result<Opened> {
        let (ledger, queue) = (ledger_file(out), out.join(QUEUE_FOLDER));
        let is_empty = std::fs::metadata(&ledger).map_or(true, |file| file.len() == 0);
        if is_empty && holds_queue(&queue) {
            let (ledger, queue) = (ledger.display(), queue.display());
            anyhow::bail!(
                "{ledger} is missing or empty, found a queue in {queue}; expected the ledger of its run: \
                 put the ledger back, or name another --out to begin a new run"
            );
        }
        let fsync = recipe.queue.durability == Durability::Fsync;
        let dir = out.to_owned();
        let full_disk_wait = seconds(recipe.timeouts.queue_put);
        let config = LedgerConfig { fsync, inline: false, full_disk_wait };
        let opening = move || LedgerWriter::open(&dir, config);
        blocking("ledger open", opening).await?.context("cannot open the run's ledger")
    }

    /// Compares the ledger with the queue, and begins the run or continues it in this process.
    pub(super) async fn begin(
        opened: Opened,
        run_id: String,
        partition: Partition,
    ) -> anyhow::Result<(Self, Option<Resumption>)> {
        let (writer, mut state) = (opened.writer, opened.state);
        let records = partition.records();
        let in_queue: Vec<QueueRecord> =
            records.iter().map(|record| QueueRecord::parse(record)).collect::<Result<_, _>>()?;
        let started_s = unix_seconds();
        let resumption = match state.run().cloned() {
            Some(_) => Some(state.reconcile(&in_queue).context("the ledger and the queue differ")?),
            None if partition.stats().rows > 0 || !in_queue.is_empty() => anyhow::bail!(
                "the ledger has no record, found {} rows in the run's queue; expected the ledger of the run that put \
                 them: put it back, or name another --out to begin a new run",
                partition.stats().rows
            ),
            None => None,
        };
        let (run_id, life) = match (&resumption, state.run()) {
            (Some(resumption), Some(run)) => (run.run_id.clone(), resumption.life),
            _ => {
                writer.append(Record::Run(RunRecord { run_id: run_id.clone(), started_s, format: FORMAT }));
                (run_id, 1)
            }
        };
        if let Some(resumption) = &resumption {
            for record in &resumption.records {
                writer.append(record.clone());
            }
        }
        writer.append(Record::Life(LifeRecord { number: life, pid: std::process::id(), started_s }));
        writer.sync_all().await.context("cannot write the run's ledger")?;
        // The records above settle these groups. The groups stay accepted, even if the queue forgets their
        // records.
        partition.forget_records(records.len()).await?;
        let run_id = format!("{run_id}l{life}");
        Ok((Self { writer, run_id, partition, unsettled: Mutex::default() }, resumption))
    }

    /// Reads the prompts and tokens to which a resumption refers. Without `keeps_tokens` the tokens are left
    /// out, and the prompts start again: a trajectory cannot be continued from its tokens.
    pub(super) async fn restore(
        out: &Path,
        resumption: Resumption,
        prompts: &PromptFeed,
        keeps_tokens: bool,
        scope: &Scope,
    ) -> anyhow::Result<Restored> {
        let (dir, prompts) = (out.to_owned(), prompts.clone());
        let reading = move || -> anyhow::Result<Restored> {
            let mut queued = Vec::with_capacity(resumption.queued.len());
            for waiting in &resumption.queued {
                let prompt = waiting_prompt(&dir, waiting, &prompts)?;
                let tokens = waiting.tokens.filter(|_| keeps_tokens);
                let kept = tokens.map(|place| kept_tokens(&dir, place)).transpose()?;
                queued.push((waiting.clone(), prompt, kept));
            }
            Ok(Restored { resumption, queued })
        };
        scope.spawn_blocking("ledger restore", reading).await?
    }

    /// Makes all records of the ledger as durable as the recipe asks for. After that, accepted groups may be
    /// put.
    pub(super) async fn before_put(&self) -> anyhow::Result<()> {
        self.writer.sync_all().await.context("cannot write the run's ledger")
    }

    /// Lets the ledger fail at once on a full disk after `interrupted` is cancelled.
    pub(super) fn stop_waiting_after(
        &self,
        interrupted: CancellationToken,
    ) -> impl Future<Output = ()> + Send + 'static {
        let writer = self.writer.clone();
        async move {
            interrupted.cancelled().await;
            writer.stop_waiting();
        }
    }

    /// Notes that the group of `dispatch` is in the queue.
    pub(super) fn was_put(&self, dispatch: DispatchId) {
        self.unsettled.lock().push(dispatch);
    }

    /// Settles the groups that are in the queue. They stay accepted from now on, and the queue may forget
    /// their records.
    pub(super) async fn settle(&self) -> anyhow::Result<()> {
        let put = std::mem::take(&mut *self.unsettled.lock());
        for ids in put.chunks(SETTLED_MAX) {
            self.writer.append(Record::Settled { ids: ids.to_vec() });
        }
        self.before_put().await?;
        self.partition.forget_records(put.len()).await?;
        Ok(())
    }

    /// Writes the remaining records, and closes the ledger.
    pub(super) async fn close(&self) -> anyhow::Result<()> {
        let writer = self.writer.clone();
        Ok(blocking("ledger close", move || writer.close()).await??)
    }
}
