//! One file a command or a handful of small ones that belong together: each resolves what the
//! command line names, calls the service, and prints.

mod account;
mod agent;
mod app;
mod doctor;
mod events;
mod job_change;
mod job_create;
mod job_follow;
mod job_list;
mod job_rows;
mod job_show;
mod job_why;
mod manual;
mod plan;
mod queue;
mod script_app;
mod site;
mod site_init;
mod watch;

use crate::{
    args::{
        Command,
        app::Command as App,
        events::Command as Events,
        job::Command as Job,
        queue::Command as Queue,
        site::{Command as Site, Folder},
    },
    context::Context,
    failure::Result,
};

pub(crate) use doctor::Verdict;
pub(crate) use manual::COMPLETE_VARIABLE;

/// Runs one command.
///
/// # Errors
/// The failure to print, with its exit code.
pub(crate) async fn run(context: Context, command: Command) -> Result<()> {
    match dispatch(context, command).await {
        Err(failure) if failure.is_misunderstood() => Err(doctor::explain_version(context, failure).await),
        outcome => outcome,
    }
}

async fn dispatch(context: Context, command: Command) -> Result<()> {
    match command {
        Command::Register(enter) => account::register(context, &enter).await,
        Command::Login(enter) => account::login(context, &enter).await,
        Command::Logout => account::logout(context).await,
        Command::Whoami => account::whoami(context).await,
        Command::Site(command) => match command {
            Site::Init { path, name, platform, yes } => {
                site_init::init(context, &path, name.as_deref(), platform.as_deref(), yes.yes).await
            }
            Site::Ls { site } => site::ls(context, site.as_deref()).await,
            Site::Start(folder) => agent::start(context, &folder).await,
            Site::Run(folder) => agent::run(context, &folder).await,
            Site::Stop(folder) => agent::stop(context, &folder).await,
            Site::Status(folder) => agent::status(context, &folder).await,
            Site::Sync(folder) => site::sync(context, &folder).await,
            Site::Mv { from, to } => site::mv(context, &from, to.as_deref()).await,
            Site::Rename { name, site } => site::rename(context, &name, site.site.as_deref()).await,
            Site::Unit(folder) => agent::unit(context, &folder).await,
            Site::Rm { path, site, yes, force } => {
                let folder = Folder { path, site: None };
                site::rm(context, &folder, site.site.as_deref(), yes.yes, force).await
            }
        },
        Command::App(command) => match command {
            App::Sync(site) => app::sync(context, site.site.as_deref()).await,
            App::Ls(site) => app::ls(context, site.site.as_deref()).await,
            App::Show { app, parameters, site } => app::show(context, &app, &parameters, site.site.as_deref()).await,
            App::Rm { app, site, yes } => app::rm(context, &app, site.site.as_deref(), yes.yes).await,
        },
        Command::Job(command) => match command {
            Job::Create(create) => job_create::create(context, &create).await,
            Job::Submit(submit) => script_app::submit(context, &submit).await,
            Job::Ls(list) => job_list::ls(context, &list).await,
            Job::Show { id } => job_show::show(context, id).await,
            Job::Why { id } => job_why::why(context, id).await,
            Job::Wait { selection, timeout } => job_follow::wait(context, &selection, timeout).await,
            Job::Watch { selection } => job_follow::watch(context, &selection).await,
            Job::Cancel(change) => job_change::cancel(context, &change).await,
            Job::Rm(change) => job_change::rm(context, &change).await,
            Job::Modify(modify) => job_change::modify(context, &modify).await,
        },
        Command::Queue(command) => match command {
            Queue::Submit(submit) => queue::submit(context, &submit).await,
            Queue::Ls(list) => queue::ls(context, &list).await,
            Queue::Show { id } => queue::show(context, id).await,
            Queue::Watch(site) => watch::queue(context, site.site.as_deref()).await,
            Queue::Term { scheduler_id, site, yes } => {
                let removal = queue::Removal {
                    ids: &[],
                    scheduler_id: Some(&scheduler_id),
                    site: site.site.as_deref(),
                    dry_run: false,
                    yes: yes.yes,
                };
                queue::rm(context, removal).await
            }
            Queue::Rm { ids, scheduler_id, all: _, dry_run, site, yes } => {
                let removal = queue::Removal {
                    ids: &ids,
                    scheduler_id: scheduler_id.as_deref(),
                    site: site.site.as_deref(),
                    dry_run,
                    yes: yes.yes,
                };
                queue::rm(context, removal).await
            }
        },
        Command::Events(command) => match command {
            Events::Ls(list) => events::ls(context, &list).await,
            Events::Watch(wanted) => watch::events(context, &wanted).await,
        },
        Command::Doctor => doctor::doctor(context).await,
        Command::Completions { shell } => manual::completions(context, shell),
        Command::Man { folder } => manual::man(context, &folder),
    }
}
