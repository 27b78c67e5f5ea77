# find_package(baton-testing) makes the target baton::testing.
# Where /lib is a link to /usr/lib, CMake may have come by either, and headers are in /usr alone.
get_filename_component(_baton_lib "${CMAKE_CURRENT_LIST_DIR}/../.." REALPATH)
get_filename_component(_baton_prefix "${_baton_lib}/../.." ABSOLUTE)

if(NOT TARGET baton::testing)
  add_library(baton::testing SHARED IMPORTED)
  set_target_properties(baton::testing PROPERTIES
    IMPORTED_LOCATION "${_baton_lib}/libbaton-testing.so.0"
    IMPORTED_SONAME libbaton-testing.so.0
    INTERFACE_INCLUDE_DIRECTORIES "${_baton_prefix}/include")
endif()
