// The text of page_template.html, which the build turns into a source.
#ifndef TESTS_DEMO_PAGE_TEMPLATE_H_
#define TESTS_DEMO_PAGE_TEMPLATE_H_

namespace baton::demo {

extern const char kPageTemplate[];

}  // namespace baton::demo

#endif  // TESTS_DEMO_PAGE_TEMPLATE_H_
