#include "launch_graph.h"

#include <stdlib.h>

LaunchGraph *
launch_graph_new(const GraphFunctions *driver, size_t count)
{
    LaunchGraph *graph = calloc(1, sizeof(LaunchGraph));
    if (graph == NULL) {
        return NULL;
    }
    graph->driver = *driver;
    graph->count = count;
    graph->nodes = calloc(count + 1, sizeof(void *));
    if (graph->nodes == NULL) {
        free(graph);
        return NULL;
    }
    return graph;
}

int
launch_graph_add(LaunchGraph *graph, const KernelNode *node)
{
    if (graph->graph == NULL) {
        int status = graph->driver.create(&graph->graph, 0);
        if (status) {
            graph->graph = NULL;
            return status;
        }
    }
    size_t place = graph->added;
    int status = graph->driver.add(&graph->nodes[place], graph->graph, graph->nodes + place - (place > 0),
                                   place > 0, node);
    graph->added += status == 0;
    return status;
}

int
launch_graph_finish(LaunchGraph *graph)
{
    int status = graph->driver.instantiate(&graph->executable, graph->graph, 0);
    if (status) {
        graph->executable = NULL;
    }
    return status;
}

int
launch_graph_set(LaunchGraph *graph, size_t position, const KernelNode *node)
{
    return graph->driver.set(graph->executable, graph->nodes[position], node);
}

int
launch_graph_may_run(const LaunchGraph *graph, void *stream)
{
    int capturing = 0;
    return graph->driver.is_capturing(stream, &capturing) == 0 && capturing == 0;
}

void
launch_graph_clear(LaunchGraph *graph)
{
    if (graph->executable != NULL) {
        graph->driver.destroy_executable(graph->executable);
    }
    if (graph->graph != NULL) {
        graph->driver.destroy(graph->graph);
    }
    graph->executable = graph->graph = NULL;
    graph->added = 0;
}

void
launch_graph_free(LaunchGraph *graph)
{
    if (graph != NULL) {
        launch_graph_clear(graph);
        free(graph->nodes);
        free(graph);
    }
}
