//! `rolldock queue salvage`

use rolldock_process::{queue_folder, say};
use rolldock_queue::{Salvage, SnapshotCounts};
use rolldock_scope::blocking;

use crate::args::SalvageArgs;
use crate::file::Unfinished;

pub(super) async fn salvage(args: SalvageArgs) -> anyhow::Result<()> {
    let folder = queue_folder(&args.source);
    let salvage = blocking("queue salvage", move || Salvage::read(&folder)).await??;
    let file = Unfinished::create(&args.file)?;
    let SnapshotCounts { partitions, rows, payload_bytes, .. } = salvage.snapshot(file.writer()?).await?;
    file.finish()?;
    for loss in &salvage.losses {
        say(&format!("lost: {loss}"));
    }
    if salvage.losses.is_empty() {
        say("nothing is lost");
    }
    let file = args.file.display();
    say(&format!("{partitions} partitions, {rows} rows, {payload_bytes} bytes of payload in {file}"));
    Ok(())
}
