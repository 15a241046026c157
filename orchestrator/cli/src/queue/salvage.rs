//! `rolldock queue salvage`

use rolldock_process::{queue_folder, say};
use rolldock_queue::Salvage;
use rolldock_scope::blocking;

use super::tools::described;
use crate::args::SalvageArgs;
use crate::file::Unfinished;

pub(super) async fn salvage(args: SalvageArgs) -> anyhow::Result<()> {
    let folder = queue_folder(&args.source);
    let salvage = blocking("queue salvage", move || Salvage::read(&folder)).await??;
    let file = Unfinished::create(&args.file)?;
    let counts = salvage.snapshot(file.writer()?).await?;
    file.finish()?;
    for loss in &salvage.losses {
        say(&format!("lost: {loss}"));
    }
    if salvage.losses.is_empty() {
        say("nothing is lost");
    }
    let file = args.file.display();
    say(&format!("{} in {file}", described(&counts)));
    Ok(())
}
