/* Estimates pi by numerical integration over all MPI ranks: pi_mpi STEPS writes result.json from rank 0. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const long steps = argc > 1 ? atol(argv[1]) : 0;
    if (steps <= 0) {
        if (rank == 0) fprintf(stderr, "usage: pi_mpi STEPS\n");
        MPI_Finalize();
        return 2;
    }
    double part = 0.0, sum = 0.0;
    for (long i = rank; i < steps; i += size) {
        const double x = (i + 0.5) / steps;
        part += 4.0 / (1.0 + x * x);
    }
    MPI_Reduce(&part, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    int status = 0;
    if (rank == 0) {
        printf("%d ranks: pi is about %.12f\n", size, sum / steps);
        FILE *file = fopen("result.json", "w");
        if (!file || fprintf(file, "{\"ranks\": %d, \"pi\": %.12f}\n", size, sum / steps) < 0 || fclose(file)) status = 1;
    }
    MPI_Finalize();
    return status;
}
