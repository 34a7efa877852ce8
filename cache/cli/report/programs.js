/* Programs: graphs, passes, kernels. */
