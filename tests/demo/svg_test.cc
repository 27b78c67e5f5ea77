#include "tests/demo/svg.h"

#include "gtest/gtest.h"

namespace baton::demo {
namespace {

TEST(SvgTest, CompactingLeavesTheLines) {
  EXPECT_EQ(Compact("<svg>\n<defs>\n<circle id='gpDot' r='0.5'/>\n</defs>\n"
                    "<g stroke=\"gray\" stroke-linecap=\"butt\" stroke-linejoin=\"miter\">\n"
                    "<path d='M125.17,265.20 L7,8.5'/></g>\n"
                    "<g stroke=\"red\"><g>\n<text></text>\n</g>\n</g>\n</svg>\n"),
            "<svg>\n<g stroke=\"gray\">\n<path d='M125.1,265.2 L7,8.5'/></g>\n</svg>\n");
}

}  // namespace
}  // namespace baton::demo
