//! How a pilot begins: nodes, workers, the way to start ranks, and a Session.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use chrono::Utc;
use copal_client::{Client, SiteDir, spool::SpoolHeader};
use copal_schemas::{SessionId, batch_job::JobMode, settings::Settings};
use tokio::sync::mpsc::unbounded_channel;
use tracing::info;

use super::{
    Ears, Lease, Mouths, Pilot,
    asking::Asking,
    book::Book,
    demand::Terms,
    doubts::Doubts,
    nodes_of,
    posts::{Posts, start_remote_workers},
    setup::minutes_to,
    survey,
};
use crate::{
    args::PilotArgs,
    fleet::Fleet,
    login,
    mode::task::Workshop,
    mpi,
    protocol::Setup,
    report::Reporter,
    session::{self, Asker, Contact},
    stop::Deadline,
};

impl Pilot {
    /// Finds the nodes, starts the workers and begins to open a Session.
    pub(super) async fn start(args: &PilotArgs, site: SiteDir, settings: Settings, start: Instant) -> Result<Self> {
        let mode = args.job_mode.context("-j is missing")?;
        let wall_time_min = args.wall_time_min.context("-t is missing")?;
        // Slurm knows when its allocation ends; what ran before the launcher has used up some of the time.
        let left_min = minutes_to(std::env::var("SLURM_JOB_END_TIME").ok().as_deref(), Utc::now().timestamp());
        let wall_time_min = left_min.map_or(wall_time_min, |left| left.min(wall_time_min));
        let deadline = Deadline::new(start, wall_time_min, settings.launcher.wall_time_pad_sec);
        let allocation = nodes_of(args, &settings)?;
        let (heard, heard_ears) = unbounded_channel();
        let (verdicts, verdict_ears) = unbounded_channel();
        let (opened, opened_ears) = unbounded_channel();
        let (fleet_events, fleet_ears) = unbounded_channel();
        let (surveyed, survey_ears) = unbounded_channel();

        let setup = Setup {
            kill_grace_sec: settings.launcher.kill_grace_sec,
            tail_lines: settings.launcher.error_tail_num_lines,
            starts_ranks: mode == JobMode::Mpi,
            group: String::new(),
        };
        let program = std::env::current_exe().context("can't find this program's own file")?;
        let posts = Posts::new(mode, &allocation.nodes);
        let mut fleet = Fleet::new(program.clone(), setup, posts.workers.len(), fleet_events);
        // The local worker comes first, while this process is small.
        for (worker, post) in posts.workers.iter().enumerate() {
            if post.is_none() {
                fleet.start_here(worker)?;
            }
        }
        let launcher = &settings.launcher;
        let needs_mpi = mode == JobMode::Mpi || posts.workers.iter().any(Option::is_some);
        let mpi = match needs_mpi {
            true => Some(mpi::choose(launcher.mpi, launcher.mpi_template.as_deref(), allocation.source)?),
            false => None,
        };
        if let Some(mpi) = &mpi
            && posts.workers.iter().any(Option::is_some)
        {
            start_remote_workers(&mut fleet, &posts, &allocation.nodes, mpi.as_ref(), &program, &site).await?;
        }
        let shares_nodes = mode == JobMode::Serial || mpi.as_ref().is_none_or(|mpi| mpi.shares_nodes());
        let workshop =
            Workshop { site: site.clone(), batch_job_id: args.batch_job_id, mpi: mpi.filter(|_| mode == JobMode::Mpi) };
        let names: Vec<&str> = allocation.nodes.iter().take(8).map(|node| node.name.as_str()).collect();
        info!(
            mode = %mode,
            nodes = allocation.nodes.len(),
            source = ?allocation.source,
            minutes = wall_time_min,
            "launcher starts on {}{}",
            names.join(", "),
            if names.len() < allocation.nodes.len() { ", …" } else { "" }
        );
        let workers = posts.workers.len();
        let unknown = match &workshop.mpi {
            Some(_) => survey::unknown(&allocation.nodes, &allocation.rules),
            None => Vec::new(),
        };
        let survey = survey::Commands::default();
        if let Some(mpi) = &workshop.mpi {
            survey::ask(&unknown, &allocation.nodes, mpi.as_ref(), &surveyed, &survey)?;
        }
        let sort_by = settings.launcher.sort_by;
        let mut book = Book::new(allocation.nodes, allocation.rules, posts.of_node.clone(), sort_by, workshop);
        if let Some(limit) = settings.launcher.max_concurrent.filter(|_| mode == JobMode::Serial) {
            book.limit_jobs_per_node(limit as usize);
        }
        if !shares_nodes {
            book.limit_jobs_per_node(1);
        }
        let remote = posts.workers.iter().filter_map(|post| *post);
        remote.chain(unknown).for_each(|node| book.await_node(node));
        let arrival_sec = settings.launcher.worker_start_sec;
        let terms = Terms { filter_tags: args.filter_tags(), serial_only: mode == JobMode::Serial, sort_by };
        let pilot = Self {
            site,
            settings,
            batch_job_id: args.batch_job_id,
            client: None,
            deadline,
            terms,
            contact: Contact::default(),
            lease: None,
            asking: Asking::default(),
            ears: Ears {
                heard: heard_ears,
                verdicts: verdict_ears,
                fleet: fleet_ears,
                opened: opened_ears,
                surveyed: survey_ears,
            },
            mouths: Mouths { heard, verdicts, opened },
            fleet,
            survey,
            book,
            doubts: Doubts::default(),
            arriving: (0..workers).filter(|worker| posts.workers[*worker].is_some()).collect(),
            arrive_by: Instant::now() + Duration::from_secs_f64(arrival_sec.clamp(0.0, 1e9)),
            losses: vec![Vec::new(); workers],
            last_busy: Instant::now(),
            is_cut_off: false,
            stopping: None,
            give_up_at: None,
        };
        pilot.open_session();
        Ok(pilot)
    }

    /// Logs in where that is still to be done, and opens a Session, by a task of its own; the loop hears of it.
    pub(super) fn open_session(&self) {
        let (known, site) = (self.client.clone(), self.site.clone());
        let (site_id, batch_job_id) = (self.settings.site_id, self.batch_job_id);
        let (opened, give_up) = (self.mouths.opened.clone(), self.deadline.term_at);
        tokio::spawn(async move {
            let open = async {
                let client = match known {
                    Some(client) => client,
                    None => login::log_in(&site, batch_job_id, give_up).await?,
                };
                let session_id = session::open(&client, site_id, batch_job_id, give_up).await?;
                Ok((client, session_id))
            };
            drop(opened.send(open.await));
        });
    }

    pub(super) fn begin_lease(&mut self, client: Client, session_id: SessionId) {
        info!(session.id = %session_id, "opened a Session");
        self.client = Some(client.clone());
        self.contact.mark(Instant::now());
        let header = SpoolHeader { site_id: self.settings.site_id, session_id, batch_job_id: self.batch_job_id };
        let reporter = Reporter::start(
            client.clone(),
            header,
            self.site.spool(),
            self.contact.clone(),
            self.mouths.verdicts.clone(),
        );
        let heard = self.mouths.heard.clone();
        let signals = tokio::spawn(session::hear_signals(client.clone(), session_id, self.contact.clone(), heard));
        let asker = Asker { client, session_id, site_id: self.settings.site_id, contact: self.contact.clone() };
        self.asking = Asking::default();
        self.last_busy = Instant::now();
        self.lease = Some(Lease { asker, reporter, signals });
    }
}
