// Pictures that gnuplot has drawn.
#ifndef TESTS_DEMO_SVG_H_
#define TESTS_DEMO_SVG_H_

#include <string>

namespace baton::demo {

// Returns the same picture in about two thirds of the bytes. `svg` has lines alone: it uses no
// symbol of gnuplot's for points.
std::string Compact(const std::string& svg);

}  // namespace baton::demo

#endif  // TESTS_DEMO_SVG_H_
