/* Launches that follow each other as one CUDA graph, whose nodes are set anew where something has changed. */

#ifndef WEFT_LAUNCH_GRAPH_H
#define WEFT_LAUNCH_GRAPH_H

#include <stddef.h>

/* The driver's CUDA_KERNEL_NODE_PARAMS_v2. */
typedef struct {
    void *function;
    unsigned int grid[3];
    unsigned int block[3];
    unsigned int shared_bytes;
    void **parameters;
    void **extra;
    void *kernel;
    void *context;
} KernelNode;

/* The driver's functions, in this order: cuGraphCreate, cuGraphAddKernelNode_v2,
   cuGraphInstantiateWithFlags, cuGraphExecKernelNodeSetParams_v2, cuGraphLaunch, cuStreamIsCapturing,
   cuGraphExecDestroy, cuGraphDestroy.  Each gives 0 for success. */
typedef struct {
    int (*create)(void **graph, unsigned int flags);
    int (*add)(void **node, void *graph, void *const *before, size_t count, const KernelNode *);
    int (*instantiate)(void **executable, void *graph, unsigned long long flags);
    int (*set)(void *executable, void *node, const KernelNode *);
    int (*launch)(void *executable, void *stream);
    int (*is_capturing)(void *stream, int *status);
    int (*destroy_executable)(void *executable);
    int (*destroy)(void *graph);
} GraphFunctions;

typedef struct {
    GraphFunctions driver;
    size_t count; /* nodes, each of which waits for the one before */
    size_t added;
    void **nodes;
    void *graph;
    void *executable; /* NULL until all nodes are there */
} LaunchGraph;

/* Memory for a graph of `count` nodes; NULL where there is none. */
LaunchGraph *launch_graph_new(const GraphFunctions *driver, size_t count);

/* Add the next node.  The driver copies everything.  Gives its status. */
int launch_graph_add(LaunchGraph *graph, const KernelNode *node);

/* Make the graph executable, once all nodes are there. */
int launch_graph_finish(LaunchGraph *graph);

/* Let a node be another one in later launches; those that are under way stay as they are. */
int launch_graph_set(LaunchGraph *graph, size_t position, const KernelNode *node);

/* Whether a graph may be launched on `stream`: nobody records what is done there. */
int launch_graph_may_run(const LaunchGraph *graph, void *stream);

/* Drop the driver's graph, so that another may be built. */
void launch_graph_clear(LaunchGraph *graph);

void launch_graph_free(LaunchGraph *graph);

#endif
