#ifndef TESTS_SUPERVISOR_METRICS_HTTP_GET_H_
#define TESTS_SUPERVISOR_METRICS_HTTP_GET_H_

#include <string>

namespace baton::metrics {

// The whole answer of 127.0.0.1:`port`, header and body; what is wrong, if there is none.
std::string HttpGet(int port, const std::string& path);

}  // namespace baton::metrics

#endif  // TESTS_SUPERVISOR_METRICS_HTTP_GET_H_
