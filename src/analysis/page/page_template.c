/* page_template.c - embeds the files of the page's template into the program with the assembler's .incbin.
 *
 * HR__PAGE_DIR is the directory of the files. The build defines it, and rebuilds this file when one of them changes. */
#include "analysis/page/page.h"

#define PART(name, file)                                                       \
	__asm__(".pushsection .rodata\n"                                           \
	        ".hidden hr__page_" #name "\n"                                     \
	        ".globl hr__page_" #name "\n"                                      \
	        "hr__page_" #name ":\n"                                            \
	        ".incbin \"" HR__PAGE_DIR "/" file "\"\n"                          \
	        ".hidden hr__page_" #name "_end\n"                                 \
	        ".globl hr__page_" #name "_end\n"                                  \
	        "hr__page_" #name "_end:\n"                                        \
	        ".byte 0\n"                                                        \
	        ".popsection\n");                                                  \
	extern const char hr__page_##name[] __attribute__((visibility("hidden"))); \
	extern const char hr__page_##name##_end[] __attribute__((visibility("hidden")));

PART(html, "page.html")
PART(css, "page.css")
PART(data_js, "page_data.js")
PART(chart_js, "page_chart.js")
PART(view_js, "page_view.js")

hr__page_text hr__page_template(hr__page_part part)
{
	/* The addresses are subtracted as integers, because in C they belong to different arrays. */
#define LENGTH(name) (size_t)((uintptr_t)hr__page_##name##_end - (uintptr_t)hr__page_##name)
	switch (part) {
	case HR__PAGE_HTML: return (hr__page_text){ hr__page_html, LENGTH(html) };
	case HR__PAGE_CSS: return (hr__page_text){ hr__page_css, LENGTH(css) };
	case HR__PAGE_DATA_JS: return (hr__page_text){ hr__page_data_js, LENGTH(data_js) };
	case HR__PAGE_CHART_JS: return (hr__page_text){ hr__page_chart_js, LENGTH(chart_js) };
	default: return (hr__page_text){ hr__page_view_js, LENGTH(view_js) };
	}
#undef LENGTH
}
