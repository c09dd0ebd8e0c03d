/* One line a rank: rank, size, host, the CPUs it may use, the GPUs it sees. Then it waits for the file `gate`
 * at the Site, so that a test can see how many run at the same time. */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
  int rank, size, limit = 120 * 20;
  char host[256], cpus[4096] = "", line[8192], gate[4096];
  cpu_set_t mask;
  const char *gpus = getenv("CUDA_VISIBLE_DEVICES"), *site = getenv("COPAL_SITE_PATH");
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  gethostname(host, sizeof host);
  sched_getaffinity(0, sizeof mask, &mask);
  for (int cpu = 0, used = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &mask)) used += snprintf(cpus + used, sizeof cpus - used, used ? ",%d" : "%d", cpu);
  snprintf(line, sizeof line, "rank %d of %d host %s cpus %s gpus %s\n", rank, size, host, cpus, gpus ? gpus : "none");
  fputs(line, stdout);
  fflush(stdout);
  snprintf(gate, sizeof gate, "%s/gate", site ? site : ".");
  while (access(gate, F_OK) != 0 && limit-- > 0) usleep(50000);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Finalize();
  return limit > 0 ? 0 : 1;
}
