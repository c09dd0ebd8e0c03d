//! Command lines of every launcher of ranks, for several runs each, and real ones of the `mpiexec` that is here.

use std::process::Command;

use copal_schemas::JobId;

use super::*;
use crate::{
    hardware::{Core, Gpu, GpuVendor, NodeHardware},
    nodes::Node,
    packing::{Ask, Packer},
};
use copal_schemas::{resources::ResourceShape, settings::SortBy};

/// Two nodes of 8 cores and 4 GPUs (the last one next to the first cores), or of 4 MIG slices.
fn nodes(vendor: GpuVendor, mig: bool) -> Vec<Node> {
    let node = |number: u32| {
        let core = |id| Core { id, threads: vec![id, id + 8], numa: id / 4 };
        let gpu = |device: u32| Gpu {
            id: if mig { format!("MIG-{number}{device}") } else { device.to_string() },
            vendor,
            mig,
            near_cores: vec![(3 - device) * 2, (3 - device) * 2 + 1],
        };
        let hardware = NodeHardware { cores: (0..8).map(core).collect(), gpus: (0..4).map(gpu).collect(), mem_mb: 0 };
        Node::new(format!("nid0010{number}"), hardware, number == 1)
    };
    (1..=2).map(node).collect()
}

fn run(nodes: &[Node], shape: ResourceShape, params: &[(&str, &str)]) -> RankedRun {
    let ask = Ask { job: JobId(7), shape, priority: 0, wall_time_min: 0, walltime_limit_min: None };
    let mut packer = Packer::new(nodes, SortBy::Fifo);
    packer.push(ask.clone()).unwrap();
    let placed = packer.place(0.0, f64::INFINITY);
    let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    let program = ["./a b", "--größe", "it's"].map(String::from).to_vec();
    RankedRun::new(&ask, &placed[0], nodes, program, map(&[("COPAL_JOB_ID", "7"), ("X", "a b")]), map(params))
}

/// The runs that each launcher of ranks is asked for.
fn runs() -> Vec<(&'static str, RankedRun)> {
    let (cuda, slices) = (nodes(GpuVendor::Nvidia, false), nodes(GpuVendor::Nvidia, true));
    let shape = ResourceShape::default();
    let ranks = |num_nodes, ranks_per_node| ResourceShape { num_nodes, ranks_per_node, ..shape };
    vec![
        (
            "2 ranks of 2 threads that share a node",
            run(&cuda, ResourceShape { threads_per_rank: 2, node_packing_count: 2, ..ranks(1, 2) }, &[]),
        ),
        (
            "8 ranks on 2 nodes with 1 GPU and both threads of a core each",
            run(
                &cuda,
                ResourceShape { threads_per_rank: 2, threads_per_core: 2, gpus_per_rank: 1.0, ..ranks(2, 4) },
                &[],
            ),
        ),
        (
            "2 ranks that share a GPU",
            run(&cuda, ResourceShape { gpus_per_rank: 0.5, node_packing_count: 4, ..ranks(1, 2) }, &[]),
        ),
        (
            "2 ranks with a MIG slice each",
            run(&slices, ResourceShape { gpus_per_rank: 1.0, node_packing_count: 2, ..ranks(1, 2) }, &[]),
        ),
        (
            "1 rank with a MIG slice on each of 2 nodes",
            run(&slices, ResourceShape { gpus_per_rank: 1.0, ..ranks(2, 1) }, &[]),
        ),
        ("more ranks than CPUs, and words of the Job's own", {
            run(&cuda, ranks(2, 16), &[("cpu_bind", "verbose"), ("-v", ""), ("--mca", "btl self,tcp")])
        }),
    ]
}

fn show(launch: &dyn MpiLaunch) -> String {
    let mut text = String::new();
    for (title, run) in runs() {
        let command = launch.command(&run).unwrap();
        let env: Vec<String> = command.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let unset = match command.unset.len() {
            0 => String::new(),
            1..5 => format!("unset: {}\n", command.unset.join(" ")),
            many => format!("unset: {many} variables\n"),
        };
        let words = shlex::try_join(command.argv.iter().map(String::as_str)).unwrap();
        text += &format!("# {title}\nenv: {}\n{unset}{words}\n\n", env.join("; "));
    }
    text
}

fn openmpi(is_local: bool) -> openmpi::OpenMpi {
    openmpi::OpenMpi { program: "mpiexec".into(), is_local, in_slurm: !is_local, as_root: true, folders: None }
}

fn mpich(is_local: bool) -> mpich::Mpich {
    mpich::Mpich { program: "mpiexec".into(), is_local, in_slurm: false, can_bind: true }
}

#[test]
fn openmpi_on_nodes() {
    insta::assert_snapshot!(show(&openmpi(false)));
}

#[test]
fn openmpi_on_this_machine() {
    insta::assert_snapshot!(show(&openmpi(true)));
}

#[test]
fn mpich_on_nodes() {
    insta::assert_snapshot!(show(&mpich(false)));
}

#[test]
fn mpich_on_this_machine() {
    insta::assert_snapshot!(show(&mpich(true)));
}

#[test]
fn pitfall_092_srun_steps_overlap() {
    let text = show(&srun::Srun { version: (22, 5), binds: true });
    assert_eq!(text.matches("--overlap").count(), 6);
    assert_eq!(text.matches("--mem=0").count(), 6);
    insta::assert_snapshot!(text);
}

#[test]
fn where_slurm_binds_nothing_ranks_take_their_cpus_themselves() {
    let command = srun::Srun { version: (22, 5), binds: false }.command(&runs()[0].1).unwrap();
    assert!(!command.argv.iter().any(|word| word.starts_with("--cpu-bind")), "{command:?}");
    assert!(command.argv.iter().any(|word| word.contains("case $SLURM_LOCALID") && word.contains("taskset")));
}

#[test]
fn srun_before_22_05_deals_out_whole_gpus() {
    insta::assert_snapshot!(show(&srun::Srun { version: (21, 8), binds: true }));
    assert!(!show(&srun::Srun { version: (20, 2), binds: true }).contains("--overlap"));
}

#[test]
fn pitfall_081_srun_inherits_no_binding_of_the_script() {
    let command = srun::Srun { version: (22, 5), binds: true }.command(&runs()[0].1).unwrap();
    for name in ["SLURM_CPU_BIND", "SLURM_MEM_PER_CPU", "SLURM_NTASKS_PER_NODE", "SLURM_CPUS_PER_TASK"] {
        assert!(command.unset.iter().any(|unset| unset == name), "{name}");
    }
    // It would confine the step to CPUs that Slurm chooses.
    assert!(!command.argv.iter().any(|word| word.starts_with("--cpus-per-task")), "{command:?}");
    let old = srun::Srun { version: (20, 11), binds: true }.command(&runs()[0].1).unwrap();
    assert!(old.argv.iter().any(|word| word == "--cpus-per-task=2"), "{old:?}");
}

#[test]
fn pals() {
    insta::assert_snapshot!(show(&pals::Pals { program: "mpiexec".into() }));
}

#[test]
fn aprun() {
    let aprun = aprun::Aprun { program: "aprun".into() };
    assert!(!aprun.shares_nodes());
    insta::assert_snapshot!(show(&aprun));
}

#[test]
fn jsrun() {
    insta::assert_snapshot!(show(&jsrun::Jsrun { program: "jsrun".into() }));
}

#[test]
fn flux() {
    insta::assert_snapshot!(show(&flux::Flux { program: "flux".into(), is_local: false }));
}

#[test]
fn template() {
    let text = "srun -N {{num_nodes}} -n {{num_ranks}} -w {{hosts}} {{#if cpu_lists}}--bind {{cpu_lists}} {{/if}}\
                {{#each launch_args}}{{this}} {{/each}}{{#each env_names}}-x {{this}} {{/each}}";
    insta::assert_snapshot!(show(&template::Template::new(text).unwrap()));
}

#[test]
fn a_template_with_a_mistake_is_refused() {
    let chain = |error: MpiError| {
        let source = std::error::Error::source(&error).map(|source| source.to_string()).unwrap_or_default();
        format!("{error}: {source}")
    };
    let unknown = template::Template::new("x {{nodes}}").unwrap().command(&runs()[0].1).unwrap_err();
    let unknown = chain(unknown);
    assert!(unknown.contains("launcher.mpi_template") && unknown.contains("nodes"), "{unknown}");
    assert!(chain(template::Template::new("x {{#if}}").unwrap_err()).contains("makes no sense"));
    let empty = template::Template::new("   'open").unwrap().command(&runs()[0].1).unwrap_err();
    assert!(matches!(empty, MpiError::TemplateWords(_)));
    assert!(matches!(choose(MpiKind::Template, None, Source::Local), Err(MpiError::NoTemplate)));
}

#[test]
fn amd_devices_are_not_chosen_twice() {
    let amd = nodes(GpuVendor::Amd, false);
    let run = run(&amd, ResourceShape { gpus_per_rank: 1.0, node_packing_count: 4, ..ResourceShape::default() }, &[]);
    let command = mpich(false).command(&run).unwrap();
    assert_eq!(command.env.get("ROCR_VISIBLE_DEVICES").map(String::as_str), Some("0"));
    assert!(command.unset.iter().any(|name| name == "HIP_VISIBLE_DEVICES"));
    let srun = srun::Srun { version: (23, 2), binds: true }.command(&run).unwrap().argv.join(" ");
    assert!(srun.contains(
        " env -u HIP_VISIBLE_DEVICES -u CUDA_VISIBLE_DEVICES -u GPU_DEVICE_ORDINAL ROCR_VISIBLE_DEVICES=0 ./a b"
    ));
}

#[test]
fn runs_of_open_mpi_beside_each_other_have_folders_of_their_own() {
    let nodes = nodes(GpuVendor::Nvidia, false);
    let mut packer = Packer::new(&nodes, SortBy::Fifo);
    let shape = ResourceShape { node_packing_count: 8, ..ResourceShape::default() };
    let ask = |job| Ask { job: JobId(job), shape, priority: 0, wall_time_min: 0, walltime_limit_min: None };
    (0..16).for_each(|job| packer.push(ask(job)).unwrap());
    let launch = openmpi::OpenMpi { folders: Some(openmpi::Folders::default()), ..openmpi(true) };
    let folders: std::collections::BTreeSet<String> = packer
        .place(0.0, f64::INFINITY)
        .iter()
        .map(|placement| {
            let run =
                RankedRun::new(&ask(placement.job.0), placement, &nodes, vec!["true".into()], [].into(), [].into());
            let mut command = launch.command(&run).unwrap();
            command.env.remove(openmpi::FOLDER_VARIABLE).unwrap()
        })
        .collect();
    assert_eq!(folders.len(), 16, "{folders:?}");
    // What is left of them goes with the launcher.
    folders.iter().for_each(|folder| std::fs::create_dir_all(format!("{folder}/ompi.x.0")).unwrap());
    drop(launch);
    assert!(folders.iter().all(|folder| !std::path::Path::new(folder).exists()), "{folders:?}");
}

/// A machine without MPI can't run these; the project's tests install one.
fn here(kind: MpiKind) -> Option<Box<dyn MpiLaunch + Send + Sync>> {
    choose(kind, None, Source::Local).ok()
}

/// What the ranks of a run print, sorted.
fn printed(launch: &dyn MpiLaunch, run: &RankedRun) -> Vec<String> {
    let command = launch.command(run).unwrap();
    let mut process = Command::new(&command.argv[0]);
    for name in &command.unset {
        process.env_remove(name);
    }
    let output = process.args(&command.argv[1..]).envs(&command.env).output().unwrap();
    assert!(output.status.success(), "{:?}\n{}", command.argv, String::from_utf8_lossy(&output.stderr));
    let mut lines: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Two pretended nodes, or this machine as it is, with a program that says who it is and what it has.
fn real_run(nodes: &[Node], shape: ResourceShape, variables: ranks::RankVariables) -> RankedRun {
    let mut run = run(nodes, shape, &[]);
    let ranks::RankVariables { global, .. } = variables;
    let script = format!(
        "echo \"rank ${global} has X=$X GPUs=$CUDA_VISIBLE_DEVICES on $(grep Cpus_allowed_list /proc/self/status | cut -f2) $1\""
    );
    run.program = ["sh", "-c", &script, "sh", "größe & more"].map(String::from).to_vec();
    run
}

fn this_machine(count: usize, slices: u32) -> Vec<Node> {
    let mut hardware = crate::hardware::detect(&|_| None);
    let gpu = |slice| Gpu { id: format!("MIG-{slice}"), vendor: GpuVendor::Nvidia, mig: true, near_cores: Vec::new() };
    hardware.gpus = (0..slices).map(gpu).collect();
    if count > 1 {
        hardware.cores.iter_mut().for_each(|core| core.threads.clear());
    }
    (0..count).map(|number| Node::new(format!("local{number}"), hardware.clone(), true)).collect()
}

fn real_ranks(kind: MpiKind, variables: ranks::RankVariables) {
    let Some(launch) = here(kind) else { return };
    assert_eq!(launch.kind(), kind);
    // Two pretended nodes share the CPUs: four ranks run unbound.
    let pair = this_machine(2, 0);
    let two = ResourceShape { num_nodes: 2, ranks_per_node: 2, ..ResourceShape::default() };
    let lines = printed(launch.as_ref(), &real_run(&pair, two, variables));
    assert_eq!(lines.len(), 4, "{lines:?}");
    for (rank, line) in lines.iter().enumerate() {
        assert!(
            line.starts_with(&format!("rank {rank} has X=a b GPUs= on ")) && line.ends_with(" größe & more"),
            "{line}"
        );
    }
    // Two ranks with a core and a MIG slice each.
    let one = this_machine(1, 2);
    if one[0].cores.len() >= 2 {
        let shape = ResourceShape { ranks_per_node: 2, gpus_per_rank: 1.0, ..ResourceShape::default() };
        let lines = printed(launch.as_ref(), &real_run(&one, shape, variables));
        // Each rank is on a core of its own; which one is placement's choice.
        let bound =
            |rank: usize| format!("rank {rank} has X=a b GPUs=MIG-{rank} on {} größe & more", one[0].cores[rank].id);
        assert_eq!(lines.len(), 2, "{lines:?}");
        if one[0].cores.iter().all(|core| core.numa == 0) {
            assert_eq!(lines, [bound(0), bound(1)]);
        }
    }
}

#[test]
fn mpich_really_starts_ranks() {
    real_ranks(MpiKind::Mpich, ranks::RankVariables { global: "PMI_RANK", local: "MPI_LOCALRANKID" });
}

#[test]
fn openmpi_really_starts_ranks() {
    let variables = ranks::RankVariables { global: "OMPI_COMM_WORLD_RANK", local: "OMPI_COMM_WORLD_LOCAL_RANK" };
    real_ranks(MpiKind::Openmpi, variables);
}
